"""Estimates what formats would make of a gradient at other scales, by shifting its exponent histogram.

Every estimate from a shifted histogram is widened by a measured error (docs/methods.md): of 3136 pairs of scales, 4 to
2^38 apart, of 15 gradients of 8 models. Each gradient was computed at both scales from the same weights and data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ampmon.numerics.formats import BF16, E4M3, E5M2, FP16, FP32, FloatFormat
from ampmon.numerics.histogram import elsewhere, headroom_bits
from ampmon_server.analysis.flushed import OCTAVES, Flushed, usable
from ampmon_server.model.series import Floats, GradientSeries, Ints, take


FORMATS: Mapping[str, FloatFormat] = {each.name.lower(): each for each in (FP16, BF16, E4M3, E5M2)}

LEVELS = range(-8, 33)
"""Exponents of the scales that are examined."""

SAMPLES = 16
"""Number of newest samples that are considered."""

Share: TypeAlias = Literal["underflow", "subnormal", "overflow"]


class Error(NamedTuple):
    """The most by which a share is over- and underestimated in 95 % of the pairs up to ``bits`` apart."""

    bits: int
    underflow_over: float
    underflow_under: float
    subnormal_over: float
    subnormal_under: float


DOWN: Sequence[Error] = (
    Error(4, 0.0004, 0.0, 0.0002, 0.0005),
    Error(8, 0.0007, 0.0, 0.0003, 0.0007),
    Error(16, 0.0012, 0.0, 0.0004, 0.0012),
    Error(38, 0.0021, 0.0, 0.0004, 0.0021),
)
"""To smaller scales. The worst was 56 % too low: activation gradients were flushed upstream of what samples see."""

UP: Sequence[Error] = (
    Error(4, 0.0159, 0.0, 0.0002, 0.0182),
    Error(8, 0.0399, 0.0, 0.0002, 0.0486),
    Error(16, 0.2984, 0.0, 0.0001, 0.0708),
    Error(38, 1.0, 0.0, 0.0, 0.0088),
)
"""To larger scales, for all zeros: flushed ones come back as subnormal elements that no bin holds.

Beyond 2^16 all zeros may come back, so nothing is known about zeros there.
"""


@dataclass(frozen=True, slots=True)
class Gradient:
    """Shares of a gradient's elements at the scale 2^``level``, by bin [64], and of zeros.

    ``amax`` is the largest at that power of two. The shares are those at the real scale, which may lie beside it.
    """

    level: int
    histogram: Floats
    zeros: float
    amax: float


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


def levels(samples: GradientSeries) -> Ints:
    """The power of two of each sample's scale."""
    return np.asarray(np.round(np.log2(samples.scale)), np.int64)


def of_samples(samples: GradientSeries) -> Gradient | None:
    """Combine the newest samples of the parameters on fp16's grid. None if no sample is finite.

    Shares are those of the samples at the newest scale, so at that scale nothing is estimated. ``amax`` is of all.
    """
    newest = usable(samples, SAMPLES)
    if not len(newest):
        return None
    level = levels(newest)
    now = int(level[-1])
    of = newest.on_grid
    largest = float((of.amax * (2.0**now / newest.scale)).max())
    here = take(of, level == now)
    bins = (here.histogram / here.elements[:, None]).mean(0)
    return Gradient(now, bins, float((here.zeros / here.elements).mean()), largest)


def of_parameter(
    scale: float, histogram: Sequence[int], zeros: int, looked: int, amax: float
) -> Gradient:
    """Return one parameter's gradient, from ``looked`` >= 1 elements at a positive, finite ``scale``."""
    level = round(math.log2(scale))
    shares = np.array(histogram, np.float64) / looked
    return Gradient(level, shares, zeros / looked, amax * (2.0**level / scale))


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
    found = elsewhere(gradient.histogram, np.ones(()), bits, into)
    already = _already(gone, bits - (into.exponent_min_subnormal - FP16.exponent_min_subnormal))
    ends: dict[Share, tuple[Floats | float, Floats | float]] = {
        "underflow": (found.flushed_least + already[0], found.flushed_most + already[1]),
        "subnormal": (found.subnormal_least, found.subnormal_most),
        "overflow": (
            found.overflow_least,
            # The largest element's bin may reach beyond the limit although the element does not.
            found.overflow_most if room(gradient, into, level) < 0 else 0.0,
        ),
    }
    bounds: dict[str, float] = {}
    for name, (low, high) in ends.items():
        # Rounding may make differences of sums slightly negative.
        least, most = max(float(low), 0.0), max(float(high), 0.0)
        bounds[f"{name}_low"], bounds[f"{name}_high"] = widened(name, bits, least, most)
    if bits > 0:  # elements that come back are among the zeros
        back = float(found.subnormal_most) + gradient.zeros
        bounds["subnormal_high"] = min(bounds["subnormal_high"], back)
    return bounds


def _already(gone: Flushed | None, finer: int) -> tuple[float, float]:
    """The least and most of what fp16 flushed that also is at a scale and in a format with 2^-``finer`` times its grid.

    No finer grid surely flushes it, and one finer than the extrapolation reaches holds all of it.
    """
    if gone is None or finer >= OCTAVES:
        return 0.0, 0.0
    return gone.low if finer <= 0 else 0.0, gone.high


def widened(share: Share, bits: int, low: float, high: float) -> tuple[float, float]:
    """Widen the ends of a share that was estimated from a histogram shifted by ``bits``.

    Overflow stays as it is. Its error is unknown, because activation gradients overflow before those of weights.
    """
    if bits == 0 or share == "overflow":
        return low, high
    table = UP if bits > 0 else DOWN
    error = next((each for each in table if abs(bits) <= each.bits), table[-1])
    over, under = (
        (error.underflow_over, error.underflow_under)
        if share == "underflow"
        else (error.subnormal_over, error.subnormal_under)
    )
    return max(low - over, 0.0), min(high + under, 1.0)
