"""What fp16 flushed to zero, separated from zeros that always were, by what changes of the scale did to them.

Pure: samples in, estimates out. An element that fp16 flushed is a zero by the time it is seen, and so are structural
zeros (dead units, unused rows of an embedding); only the former move when the scale does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampmon.numerics.formats import FP32
from ampmon.numerics.histogram import BINS, EXPONENT_MIN, SMALL_CLASSES
from ampmon.numerics.sampling_error import Z_95
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.series import Flags, Floats, GradientSeries, Ints, Totals, take_samples


NEAR = 512
"""Samples this many updates apart or fewer are compared."""

_SUBNORMAL = SMALL_CLASSES.index("subnormal")

OCTAVES = 40
"""So far below the smallest number the distribution of magnitudes is followed."""


@dataclass(frozen=True, slots=True)
class Flushed:
    """The share of all elements that fp16 flushed at the scale of the newest sample, of what is on its grid.

    ``low`` and ``high`` bound it; ``estimate`` lies between. ``structural`` is what is left of the zeros. ``seen`` is
    the part that ``experiments``, changes of the scale with a sample on either side, showed, with its standard
    ``error``: the rest is how far the distribution of magnitudes seems to go on below what fp16 holds at the largest
    scale that was sampled. There ``small`` is the share of subnormal elements: whatever came back is among them.
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
        """Whether it may be the scale that moved the zeros: else it is the data, which changed at the same time."""
        return self.seen - Z_95 * self.error <= self.small


def flushed(case: ScalerCase) -> Flushed | None:
    """What a scaler's samples show; None where no change of the scale has a sample on either side."""
    return flushed_in(case.samples)


def flushed_in(samples: GradientSeries) -> Flushed | None:
    """The same of samples alone."""
    fine = usable(samples)
    if len(fine) < 2:
        return None
    level = np.round(np.log2(fine.scale)).astype(int)
    zeros = _zero_shares(fine.on_grid)
    near = np.diff(fine.step) <= NEAR
    moved = near & (np.diff(level) != 0)
    if not moved.any():
        return None
    profile, errors = _profile(level, zeros, moved, _noise(fine, zeros, level, near))
    newest = int(level[-1])
    rest = _tail(fine, level, at=int(level.max()))
    confirmed = profile[int(level.min())] > Z_95 * errors[int(level.min())]
    seen, error = profile[newest], errors[newest]
    share = float(zeros[level == newest][-8:].mean())
    low = max(seen - Z_95 * error, 0.0) + (rest.low if confirmed else 0.0)
    estimate = max(seen, 0.0) + rest.estimate
    high = max(seen, 0.0) + Z_95 * error + rest.high
    low, estimate, high = (min(each, share) for each in (low, estimate, high))
    structural, experiments = max(share - estimate, 0.0), int(moved.sum())
    small = float(fine.on_grid.shares()[level == level.max(), _SUBNORMAL].mean())
    return Flushed(estimate, low, high, structural, seen, error, experiments, small)


def usable(samples: GradientSeries, newest: int | None = None) -> GradientSeries:
    """The newest, or all, of a finite gradient, of as many parameters as the newest: others are not comparable."""
    of = samples.on_grid
    with np.errstate(invalid="ignore"):
        fine = (samples.scale > 0) & (samples.scale <= FP32.max) & (of.inf + of.nan == 0)
    fine &= of.elements > 0
    if fine.any():
        fine &= of.parameters == of.parameters[np.flatnonzero(fine)[-1]]
    found = np.flatnonzero(fine)
    return take_samples(samples, found if newest is None else found[-newest:])


def _zero_shares(of: Totals) -> Floats:
    return np.asarray(of.zeros / of.elements, np.float64)


def _noise(samples: GradientSeries, zeros: Floats, level: Ints, near: Flags) -> float:
    """The variance of the difference of two neighbours' shares of zeros: of sampling, and of what the data does."""
    sampled = samples.on_grid.variance[:, 0] / samples.on_grid.elements.astype(np.float64) ** 2
    still = near & (np.diff(level) == 0)
    drift = float(np.mean(np.diff(zeros)[still] ** 2)) if still.any() else 0.0
    return max(drift, 2 * float(sampled.mean()), 1e-18)


def _profile(
    level: Ints, zeros: Floats, moved: Flags, noise: float
) -> tuple[dict[int, float], dict[int, float]]:
    """By level: how many more zeros there are than at the highest level, and the error of that.

    Least squares over all experiments, each the difference of two levels. What no experiment links to the highest
    level is taken as no more than the level above it.
    """
    levels = np.unique(level)
    pairs = np.flatnonzero(moved)
    rows = np.zeros((len(pairs), len(levels) - 1))
    for row, pair in enumerate(pairs):
        low, high = np.searchsorted(levels, sorted((level[pair], level[pair + 1])))
        rows[row, low:high] = 1.0  # unknowns are the steps from each level to the next
    rise = np.where(level[pairs] < level[pairs + 1], 1.0, -1.0)
    differences = (zeros[pairs] - zeros[pairs + 1]) * rise
    inverse = np.linalg.pinv(rows)
    steps = inverse @ differences
    covariance = inverse @ inverse.T * noise
    profile, errors = {int(levels[-1]): 0.0}, {int(levels[-1]): 0.0}
    for at in range(len(levels) - 1):
        profile[int(levels[at])] = float(steps[at:].sum())
        errors[int(levels[at])] = math.sqrt(float(covariance[at:, at:].sum()))
    return profile, errors


@dataclass(frozen=True, slots=True)
class _Tail:
    low: float
    estimate: float
    high: float


def _tail(samples: GradientSeries, level: Ints, at: int) -> _Tail:
    """The share below what fp16 holds at a level, from the lowest numbers that it holds.

    On the grid, of steps of 2^-24, the numbers 1, 2 to 3, and 4 to 7 stand for magnitudes of 0.5 to 1.5, to 3.5 and to
    7.5. The density of log magnitudes is continued below: straight on (high), with the curvature it has (estimate), or
    with twice that (low). But for the last it falls by no more than half an octave: around zero gradients are dense.
    """
    of = samples.on_grid
    here = np.flatnonzero(level == at)[-8:]
    counts = of.histogram[here].sum(0) / of.elements[here].sum()
    mass = counts[_bin(-24) : _bin(-24) + 3]
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

    def below(bend: float, steepest: float) -> float:
        steeper = np.minimum(first - bend * curvature * np.arange(1, OCTAVES), steepest)
        logs = start - np.concatenate([[0.0], np.cumsum(steeper)])
        return float(np.exp(np.minimum(logs, 0.0)).sum())

    # So few were looked at that the densities themselves are only so sure.
    doubt = Z_95 / math.sqrt(max(float(mass.min()) * float(of.looked[here].sum()), 1.0))
    held = float(counts.sum())
    return _Tail(
        # What is seen cannot vouch for more than there is of it.
        low=min(below(2.0, math.inf) * max(1 - doubt, 0.0), held),
        estimate=below(1.0, math.log(2)),
        high=below(0.0, math.log(2)) * (1 + doubt),
    )


def _bin(exponent: int) -> int:
    return min(max(exponent - EXPONENT_MIN, 0), BINS - 1)
