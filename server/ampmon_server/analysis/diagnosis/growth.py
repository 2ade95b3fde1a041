"""What growth of the scale does: whether it will cure an underflow soon, and which skips it caused."""

from __future__ import annotations

import math

import numpy as np

from ampmon_server.analysis.diagnosis.underflow import MeasuredUnderflow
from ampmon_server.analysis.diagnosis.updates import GROW, MANUAL, is_set_by_hand
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalePolicy, ScalerCase
from ampmon_server.model.series import Flags
from ampmon_server.model.thresholds import Thresholds


BITS_MAX = 24

LATE = 100
"""Updates after which a scaler has reported another growth interval for certain, as it does within fifty."""

SOON = 3
"""A growth causes the overflows of the first third of a growth interval after it.

torch grows the scale after `growth_interval` updates without an overflow. A process that overflows once in d updates at
any scale passes that many with a chance of exp(-growth_interval / d), which is at most 5 % for d up to a third.
"""


AT_CEILING = 0.4
"""So many of the skips at a ceiling come soon after a growth. Those of every k-th batch of a loader hardly do."""
ALIKE = 0.9
"""Of the skips at a ceiling, so many are within a factor of two of the same scale: the one that is too large."""


def bits_to_cure(seen: MeasuredUnderflow, thresholds: Thresholds) -> int | None:
    """By how many bits the scale must grow for less than a warning; None where there is no room for that."""
    bearable = thresholds.subnormal.warning or 0.0
    for bits in range(1, min(int(seen.room), BITS_MAX) + 1):
        if seen.share_at(bits) < bearable:
            return bits
    return None


def updates_to_grow(scaler: ScalerCase, bits: int) -> float:
    """Updates until the scale has grown by so many bits, if none is skipped: those since it last moved are over."""
    policy = scaler.policy
    if not policy.growth_factor > 1 or is_past_growth(scaler):
        return math.inf
    growths = math.ceil(bits / math.log2(policy.growth_factor))
    return max(growths * policy.growth_interval - (scaler.growth_tracker or 0), 0)


def is_past_growth(scaler: ScalerCase) -> bool:
    """Whether torch waits in vain: it grows where the tracker comes to the interval, not where that is past it."""
    interval = scaler.policy.growth_interval
    return interval == 0 or (scaler.growth_tracker or 0) >= interval + LATE


def is_climbing(scaler: ScalerCase, seen: MeasuredUnderflow, thresholds: Thresholds) -> bool:
    """Whether the scaler will have cured the underflow by itself before long."""
    bits = bits_to_cure(seen, thresholds)
    if bits is None or is_set_by_hand(scaler.recent):
        return False
    return updates_to_grow(scaler, bits) <= thresholds.growth_patience


def follows_growth(cells: Cells, policy: ScalePolicy, outlier: Flags | None = None) -> Flags:
    """Which updates come after a growth that may have made them overflow, at a larger scale than before it, [n].

    They come soon after it. Where many skips do, and nearly all are at one ceiling, the later ones are its as well. A
    growth that a skip has taken back, or after which the scale was set by hand, no longer counts; nor does an
    ``outlier``, which overflows at any scale.
    """
    grew = cells["moves"][:, GROW] > 0
    moved = np.where(grew | (cells["moves"][:, MANUAL] > 0), np.arange(len(cells)), -1)
    latest = np.append(-1, np.maximum.accumulate(moved)[:-1]) if len(cells) else moved
    apart = cells["first"] - cells["last"][latest]
    larger = cells["scale_first"] > cells["scale_first"][latest]
    after = (latest >= 0) & grew[latest] & larger
    if outlier is not None:
        after &= ~outlier
    soon = after & (apart <= max(policy.growth_interval / SOON, 1))
    tries = after & (cells["skipped"] > 0)
    if tries.any() and soon[tries].mean() >= AT_CEILING and has_ceiling(cells[tries]):
        soon |= tries
    return np.asarray(soon)


def has_ceiling(skips: Cells) -> bool:
    """Whether it is always about the same scale that is too large. Where single batches are heavy, any may be."""
    scales = skips["scale_first"]
    scales = scales[(scales > 0) & np.isfinite(scales)]
    if not len(scales):
        return False
    octaves = np.log2(scales)
    return bool(np.mean(np.abs(octaves - np.median(octaves)) <= 1) >= ALIKE)
