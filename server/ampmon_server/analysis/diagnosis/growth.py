"""Tells whether growth of the scale will soon cure an underflow, and which skips it caused."""

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
"""Updates after which a scaler has certainly reported a changed growth interval. It does so within 50."""

SOON = 3
"""A growth causes the overflows in the first third of the growth interval after it.

torch grows the scale after `growth_interval` updates without an overflow. A process that overflows once in d updates at
any scale gets that far with a probability of exp(-growth_interval / d). For d up to a third of the interval, that is at
most 5 %.
"""


AT_CEILING = 0.4
"""Least share of the skips at a ceiling that come soon after a growth. Skips at every k-th batch rarely do."""
ALIKE = 0.9
"""Least share of the skips at a ceiling that are within a factor of two of one scale: the one that is too large."""


def bits_to_cure(seen: MeasuredUnderflow, thresholds: Thresholds) -> int | None:
    """Return by how many bits the scale must grow to end the warning. None if there is no room for that."""
    bearable = thresholds.subnormal.warning or 0.0
    for bits in range(1, min(int(seen.room), BITS_MAX) + 1):
        if seen.share_at(bits) < bearable:
            return bits
    return None


def updates_to_grow(scaler: ScalerCase, bits: int) -> float:
    """Return the updates until the scale has grown by ``bits``, from the growth tracker on, if none is skipped."""
    policy = scaler.policy
    if not policy.growth_factor > 1 or is_past_growth(scaler):
        return math.inf
    growths = math.ceil(bits / math.log2(policy.growth_factor))
    return max(growths * policy.growth_interval - (scaler.growth_tracker or 0), 0)


def is_past_growth(scaler: ScalerCase) -> bool:
    """Whether torch cannot grow the scale: it grows when the tracker equals the interval, not when it is past it."""
    interval = scaler.policy.growth_interval
    return interval == 0 or (scaler.growth_tracker or 0) >= interval + LATE


def is_climbing(scaler: ScalerCase, seen: MeasuredUnderflow, thresholds: Thresholds) -> bool:
    """Whether growth will cure the underflow within `growth_patience` updates."""
    bits = bits_to_cure(seen, thresholds)
    if bits is None or is_set_by_hand(scaler.recent):
        return False
    return updates_to_grow(scaler, bits) <= thresholds.growth_patience


def follows_growth(cells: Cells, policy: ScalePolicy, outlier: Flags | None = None) -> Flags:
    """Return which updates may overflow because of a growth: soon after it, at a larger scale than before, [n].

    If many skips come soon after a growth, and nearly all at one ceiling, later skips count too. A growth no longer
    counts once a skip has taken it back or the scale was set by hand. An ``outlier`` never counts, because it overflows
    at any scale.
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
    """Whether the skips have about the same scale, which is too large. Single heavy batches skip at any scale."""
    scales = skips["scale_first"]
    scales = scales[(scales > 0) & np.isfinite(scales)]
    if not len(scales):
        return False
    octaves = np.log2(scales)
    return bool(np.mean(np.abs(octaves - np.median(octaves)) <= 1) >= ALIKE)
