"""Estimates what formats would make of a gradient at other scales, by shifting its exponent histogram.

Gradients of activations are rounded and flushed at the other scale too, which no histogram of weights' gradients shows.
So the ranges leave room for that. docs/methods.md says how often they hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ampmon.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FloatFormat
from ampmon.numerics.histogram import headroom_bits
from ampmon_server.analysis.flushed import LOWEST, OCTAVES, Flushed, usable
from ampmon_server.analysis.rescaling import elsewhere
from ampmon_server.model.series import Floats, GradientSeries, take


FORMATS: Mapping[str, FloatFormat] = {each.name.lower(): each for each in (FP16, BF16, E4M3, E5M2)}

LEVELS = range(-8, 33)
"""Exponents of the scales that are examined."""

SAMPLES = 16
"""Number of newest samples that are considered."""

Share: TypeAlias = Literal["underflow", "subnormal", "overflow"]


AT_SMALLER, AT_LARGER = (2, 1 / 8), (0, 1)
"""Octaves by which rounding may move values at the limits to zero and to normal numbers, at other scales."""

SMALLEST = 3
"""Octaves of fp16's smallest numbers, which show how dense the flushed ones are."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Shares of a gradient's elements at the scale 2^``level``, by bin [64], and of zeros.

    ``amax`` is the largest at that power of two. The shares are those at the real scale, which may lie beside it, from
    step ``first`` to ``last``.
    """

    level: int
    histogram: Floats
    zeros: float
    amax: float
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """What one format would make of a gradient at each of s scales, as shares of all elements with their bounds.

    ``underflow`` is what it would flush to zero, without the structural zeros as far as they are known.
    """

    scale: list[float]
    underflow_low: list[float]
    underflow_high: list[float]
    subnormal_low: list[float]
    subnormal_high: list[float]
    overflow_low: list[float]
    overflow_high: list[float]


@dataclass(frozen=True, slots=True)
class Best:
    """The largest power of two that leaves ``headroom_bits`` to a format's largest number, and what is lost there.

    The scale is an upper bound, because activation gradients overflow first.
    """

    scale: float
    headroom_bits: float
    underflow_low: float
    underflow_high: float
    subnormal_low: float
    subnormal_high: float


def of_samples(samples: GradientSeries) -> Gradient | None:
    """Combine the newest samples of the parameters on fp16's grid. None if no sample is finite.

    Shares are those of the samples at the newest scale, so at that scale nothing is estimated. ``amax`` is of all.
    """
    newest = usable(samples, SAMPLES)
    if not len(newest):
        return None
    level = np.round(np.log2(newest.scale))
    now = int(level[-1])
    largest = float((newest.on_grid.amax * (2.0**now / newest.scale)).max())
    here = take(newest, level == now)
    of, steps = here.on_grid, here.step.tolist()
    bins = (of.histogram / of.elements[:, None]).mean(0)
    zeros = float((of.zeros / of.elements).mean())
    return Gradient(now, bins, zeros, largest, steps[0], steps[-1])


def of_parameter(
    scale: float, histogram: Sequence[int], zeros: int, looked: int, amax: float, step: int
) -> Gradient:
    """Return one parameter's gradient, from ``looked`` >= 1 elements at a positive, finite ``scale``."""
    level = round(math.log2(scale))
    shares = np.array(histogram, np.float64) / looked
    return Gradient(level, shares, zeros / looked, amax * (2.0**level / scale), step, step)


def curve(gradient: Gradient, gone: Flushed | None, into: FloatFormat) -> Curve:
    """Return the shares at each of `LEVELS`."""
    shares = [_at(gradient, gone, into, level) for level in LEVELS]
    columns = {name: [each[name] for each in shares] for name in shares[0]}
    return Curve(scale=[2.0**level for level in LEVELS], **columns)


def room(gradient: Gradient, into: FloatFormat, level: int) -> float:
    """Return the headroom in bits at 2^``level``, an upper bound. +inf if all elements are zero."""
    return float(headroom_bits(np.array(gradient.amax), into)) - (level - gradient.level)


def best(
    gradient: Gradient, gone: Flushed | None, headroom: float, into: FloatFormat = FP16
) -> Best:
    now = room(gradient, into, gradient.level)
    spare = int(np.floor(now - headroom)) if np.isfinite(now) else 0
    spare = min(spare, FP32.exponent_max - gradient.level)  # a scale is in fp32
    shares = _at(gradient, gone, into, gradient.level + spare)
    kept = {name: shares[name] for name in Best.__slots__ if name in shares}
    return Best(scale=2.0 ** (gradient.level + spare), headroom_bits=now - spare, **kept)


def _at(
    gradient: Gradient, gone: Flushed | None, into: FloatFormat, level: int
) -> dict[str, float]:
    bits = level - gradient.level
    known = 0.0 if gone is None else gone.high
    found = ranges(gradient.histogram, gradient.zeros, bits, into, known)
    already = _already(gone, bits - (into.exponent_min_subnormal - FP16.exponent_min_subnormal))
    bounds: dict[str, float] = {}
    for name, ends in found.items():
        # The largest element's bin may reach beyond the limit although the element does not.
        is_beyond = name != "overflow" or room(gradient, into, level) < 0
        low, high = ends[0], ends[1] if is_beyond else 0.0
        if name == "underflow":
            low, high = low + already[0], high + already[1]
        bounds[f"{name}_low"], bounds[f"{name}_high"] = low, min(high, 1.0)
    return bounds


def _already(gone: Flushed | None, finer: int) -> tuple[float, float]:
    """The least and most of what fp16 flushed that also is at a scale and in a format with 2^-``finer`` times its grid.

    No finer grid surely flushes it, and one finer than the extrapolation reaches holds all of it.
    """
    if gone is None or finer >= OCTAVES:
        return 0.0, 0.0
    return gone.low if finer <= 0 else 0.0, gone.high


def ranges(
    histogram: Floats, zeros: float, bits: int, into: FloatFormat = FP16, known: float = 0.0
) -> dict[Share, tuple[float, float]]:
    """Return the least and the most of each share at ``2^bits`` times the scale of these shares, by bin and of zeros.

    At that scale itself they are exact, except within a bin. The zeros are in no share but those that come back,
    of which ``known`` is what fp16 may have flushed by what changes of the scale showed.
    """
    zero, normal = AT_SMALLER if bits < 0 else AT_LARGER if bits > 0 else (0, 0)
    found = elsewhere(histogram, np.ones(()), bits, into, at_zero=zero, at_normal=normal)
    tie = FP16.exponent_min_subnormal - 1
    octaves = min(tie + bits, into.exponent_min_normal) - max(tie, into.exponent_min_subnormal - 1)
    back = coming_back(histogram, zeros, octaves, known)
    ends: dict[Share, tuple[Floats, Floats]] = {
        "underflow": (found.flushed_least, found.flushed_most),
        "subnormal": (found.subnormal_least, found.subnormal_most + back),
        "overflow": (found.overflow_least, found.overflow_most),
    }
    # Rounding may make differences of sums slightly negative.
    return {
        name: (max(float(low), 0.0), max(float(high), 0.0)) for name, (low, high) in ends.items()
    }


def coming_back(histogram: Floats, zeros: float, octaves: int, known: float = 0.0) -> float:
    """Return the most of ``zeros`` that this many octaves below fp16's numbers may hold: ``known`` of them, or more.

    An octave holds as large a share of what was not flushed as the densest of the smallest ones that were seen.
    """
    if octaves <= 0:
        return 0.0
    seen = float(histogram.sum())
    dense = float(histogram[LOWEST : LOWEST + SMALLEST].max(initial=0.0))
    return min(zeros, max(octaves * dense / seen, known)) if seen else zeros
