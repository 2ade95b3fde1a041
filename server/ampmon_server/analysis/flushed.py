"""Separates the zeros that fp16 flushed from structural zeros, by how they respond to changes of the scale.

Pure: samples in, estimates out. A sample cannot tell a flushed element from a structural zero (dead units, unused rows
of an embedding). But only flushed zeros change with the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ampmon.numerics.formats import FP32
from ampmon.numerics.histogram import EXPONENT_MIN
from ampmon.numerics.sampling_error import Z_95
from ampmon_server.model.series import Flags, Floats, GradientSeries, Ints, take


NEAR = 512
"""Samples at most this many updates apart are compared."""
UNLIKE = 3
"""Gradients of different updates differ by less than this many bits."""

LOWEST = -24 - EXPONENT_MIN
"""The bin of fp16's smallest number."""

OCTAVES = 40
"""How far below fp16's smallest number the distribution of magnitudes is extrapolated."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """The share of all elements that fp16 flushed at the newest sample's scale, for parameters on fp16's grid.

    ``estimate`` lies between ``low`` and ``high``. ``structural`` is the share of the other zeros. ``experiments``
    counts changes of the scale with a sample on either side. ``seen`` is the part of the estimate that they show, with
    its standard ``error``. The rest extrapolates the distribution of magnitudes below what fp16 holds at the largest
    sampled scale. ``small`` is the share of elements at that scale that the newest one may flush.
    """

    estimate: float
    low: float
    high: float
    structural: float
    seen: float
    error: float
    experiments: int
    small: float

    @property
    def plausible(self) -> bool:
        """Whether the scale may have moved the zeros. If not, the data changed at the same time."""
        return self.seen - Z_95 * self.error <= self.small


def flushed_in(samples: GradientSeries) -> Flushed | None:
    """Estimate from samples. None if no change of the scale has a sample on either side."""
    fine = usable(samples)
    if len(fine) < 2:
        return None
    level = np.round(np.log2(fine.scale)).astype(int)
    zeros: Floats = fine.on_grid.zeros / fine.on_grid.elements
    near = np.diff(fine.step) <= NEAR
    moved = near & (np.diff(level) != 0)
    if not moved.any():
        return None
    place = np.unique(level, return_inverse=True)[1]
    profile, errors = _profile(place, zeros, moved, _noise(fine, zeros, level, near))
    finest = np.flatnonzero(level == level.max())[-8:]
    counts = fine.on_grid.histogram[finest].sum(0) / fine.on_grid.elements[finest].sum()
    rest = _tail(counts, float(fine.on_grid.looked[finest].sum()))
    confirmed = profile[0] > Z_95 * errors[0]
    seen, error = profile[place[-1]], errors[place[-1]]
    share = float(zeros[place == place[-1]][-8:].mean())
    # Without zeros that came back at a larger scale, the extrapolated part proves nothing.
    low = max(seen - Z_95 * error, 0.0) + (rest.low if confirmed else 0.0)
    estimate = max(seen, 0.0) + rest.estimate
    high = max(seen, 0.0) + Z_95 * error + rest.high
    low, estimate, high = (min(each, share) for each in (low, estimate, high))
    structural, experiments = max(share - estimate, 0.0), int(moved.sum())
    small = float(counts[: LOWEST + level.max() - level[-1] + UNLIKE].sum())
    return Flushed(estimate, low, high, structural, seen, error, experiments, small)


def usable(samples: GradientSeries, newest: int | None = None) -> GradientSeries:
    """Return the comparable samples, all or the ``newest``: finite, and of as many parameters as the newest of them."""
    of = samples.on_grid
    with np.errstate(invalid="ignore"):
        fine = (samples.scale > 0) & (samples.scale <= FP32.max) & (of.inf + of.nan == 0)
    fine &= of.elements > 0
    if fine.any():
        fine &= of.parameters == of.parameters[np.flatnonzero(fine)[-1]]
    found = np.flatnonzero(fine)
    return take(samples, found if newest is None else found[-newest:])


def _noise(samples: GradientSeries, zeros: Floats, level: Ints, near: Flags) -> float:
    """The variance of the difference between neighbouring shares of zeros: from sampling, and from changing data."""
    sampled = samples.on_grid.variance[:, 0] / samples.on_grid.elements.astype(np.float64) ** 2
    still = near & (np.diff(level) == 0)
    drift = float(np.mean(np.diff(zeros)[still] ** 2)) if still.any() else 0.0
    return max(drift, 2 * float(sampled.mean()), 1e-18)


def _profile(
    place: Ints, zeros: Floats, moved: Flags, noise: float
) -> tuple[list[float], list[float]]:
    """By level in ascending order: the share of zeros beyond that at the highest level, and its error.

    ``place`` is each sample's level. Least squares over all experiments, each the difference of two levels. A level
    that no experiment links to the highest one has as many zeros as the level above it.
    """
    highest, pairs = int(place.max()), np.flatnonzero(moved)
    rows = np.zeros((len(pairs), highest))
    for row, pair in enumerate(pairs):
        low, high = sorted((place[pair], place[pair + 1]))
        rows[row, low:high] = 1.0  # unknowns are the steps from each level to the next
    differences = (zeros[pairs] - zeros[pairs + 1]) * np.sign(place[pairs + 1] - place[pairs])
    # The pseudo-inverse sets the steps between levels that no experiment crosses to 0.
    inverse = np.linalg.pinv(rows)
    steps = inverse @ differences
    covariance = inverse @ inverse.T * noise
    profile = [float(steps[at:].sum()) for at in range(highest + 1)]
    errors = [math.sqrt(float(covariance[at:, at:].sum())) for at in range(highest + 1)]
    return profile, errors


class _Tail(NamedTuple):
    low: float
    estimate: float
    high: float


def _tail(counts: Floats, looked: float) -> _Tail:
    """Extrapolate the share below what fp16 holds from ``counts``, the shares by bin at the highest level.

    In grid steps of 2^-24, the numbers 1, 2 to 3, and 4 to 7 stand for magnitudes from 0.5 to 1.5, to 3.5 and to 7.5.
    The density of log magnitudes continues below: straight (high), with its curvature (estimate), or with twice its
    curvature (low). Except for low, it at most halves per octave, because gradients are dense around zero.
    """
    mass = counts[LOWEST : LOWEST + 3]
    if (mass <= 0).any():
        return _Tail(0.0, 0.0, float(mass[0]))
    edges = np.log2([0.5, 1.5, 3.5, 7.5])
    width, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    density = np.log(mass / width)
    slopes = np.diff(density) / np.diff(middle)  # a rise towards larger magnitudes is positive
    between = (middle[1:] + middle[:-1]) / 2
    curvature = min((slopes[1] - slopes[0]) / (between[1] - between[0]), 0.0)
    first = float(slopes[0] + curvature * (middle[0] - between[0] - 0.5))
    start = float(density[0] - first * (middle[0] - edges[0] + 0.5))

    def below(bend: float, steepest: float, least: float = first) -> float:
        steeper = np.minimum(least - bend * curvature * np.arange(1, OCTAVES), steepest)
        logs = start - np.concatenate([[0.0], np.cumsum(steeper)])
        return float(np.exp(np.minimum(logs, 0.0)).sum())

    # The densities have a sampling error themselves.
    doubt = Z_95 / math.sqrt(max(float(mass.min()) * looked, 1.0))
    return _Tail(
        # Elements that are not zero cannot prove a share larger than their own.
        low=min(below(2.0, math.inf, first + doubt) * max(1 - doubt, 0.0), float(counts.sum())),
        estimate=below(1.0, math.log(2)),
        high=below(0.0, math.log(2)) * (1 + doubt),
    )
