"""What a format makes of the elements of exponent histograms at another scale. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampmon.numerics.formats import FP16, FloatFormat
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon.numerics.sampling_error import Floats, Ints


def shift(histogram: Ints, bits: int) -> Ints:
    """Return the histogram [..., 64] at ``2^bits`` times the scale. The end bins take what leaves the range."""
    shifted = np.zeros_like(histogram)
    source = np.arange(BINS)
    target = np.clip(source + bits, 0, BINS - 1)
    np.add.at(np.moveaxis(shifted, -1, 0), target, np.moveaxis(histogram, -1, 0))
    return shifted


@dataclass(frozen=True, slots=True)
class RescaledShares:
    """Shares of the elements of histograms [...] at another scale or in another format, each between two bounds.

    A format's limit may lie within a bin. The ``least`` excludes that bin and the ``most`` includes it. Elements that
    are already zero are in no bin, and in none of these shares.
    """

    flushed_least: Floats
    flushed_most: Floats
    subnormal_least: Floats
    subnormal_most: Floats
    overflow_least: Floats
    overflow_most: Floats


def elsewhere(
    histogram: Ints | Floats,
    elements: Ints | Floats,
    bits: int,
    into: FloatFormat = FP16,
    *,
    at_zero: int = 0,
    at_normal: float = 0,
) -> RescaledShares:
    """Return how a format represents ``elements`` [...] at ``2^bits`` times their scale, from histograms [..., 64].

    Magnitudes up to half of the smallest subnormal number round to zero, and the others in the bin of that half round
    up. So does the top of the last bin of subnormal numbers, to the smallest normal one, if the format has fewer bits
    than fp16, whose grid the elements are on. Overflow begins within the bin of the largest number.

    Elements within ``at_zero`` octaves of the limit to zero, or ``at_normal`` of that to normal numbers, may be on
    either side. A bin's elements are spread evenly over its octave.
    """
    most = np.maximum(elements, 1)

    def below(exponent: float) -> Floats:
        octaves = min(max(exponent - bits - EXPONENT_MIN, 0), BINS)
        end = int(octaves)
        part = (octaves - end) * histogram[..., end] if octaves > end else 0.0
        return np.asarray((histogram[..., :end].sum(-1) + part) / most, np.float64)

    tie = into.exponent_min_subnormal - 1
    flushed_least, flushed_most = below(tie - at_zero), below(tie + 1 + at_zero)
    normal, everything = into.exponent_min_normal, below(2 * BINS)
    rounds_up = into.mantissa_bits < FP16.mantissa_bits
    return RescaledShares(
        flushed_least,
        flushed_most,
        below(normal - rounds_up - at_normal) - flushed_most,
        below(normal + at_normal) - flushed_least,
        everything - below(into.exponent_max + 1),
        everything - below(into.exponent_max),
    )
