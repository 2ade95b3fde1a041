"""Reads a scaler's updates for the rules: streaks of skips, calibration, and how the scale moves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import MOVES
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import Flags


GROW, CAPPED, BACKOFF, MANUAL, DEAD = range(len(MOVES))

DEAD_SCALE = 2.0**-128
"""At this scale and below, ``1/scale`` is not finite in fp32."""
QUIET = 10
"""This many updates in a row without a skip end calibration."""
SOON = 3
"""A growth causes the overflows in the first third of the growth interval after it.

torch grows the scale after `growth_interval` updates without an overflow. A process that overflows once in d updates at
any scale gets that far with a probability of exp(-growth_interval / d). For d up to a third of the interval, that is at
most 5 %.
"""
# In simulations of torch's policy, 48 to 100 % of the skips at a ceiling followed a growth.
AT_CEILING = 0.4
"""Least share of the skips at a ceiling that come soon after a growth. Skips at every k-th batch rarely do."""
ALIKE = 0.9
"""Least share of the skips at a ceiling that are within a factor of two of one scale: the one that is too large."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Skipped updates in a row. ``before`` is the scale of the first, and ``after`` the one that the last left."""

    first: int
    last: int
    updates: int
    before: float
    after: float
    ongoing: bool


def streaks(cells: Cells) -> list[Streak]:
    """Return the streaks in order of step. A missing record ends a streak, because its update is unknown."""
    skipped = whole_skips(cells)
    if not skipped.any():
        return []
    apart = np.ones(len(cells), bool)
    apart[1:] = (cells["first"][1:] != cells["last"][:-1] + 1) | (skipped[1:] != skipped[:-1])
    starts = np.flatnonzero(apart)
    ends = np.append(starts[1:], len(cells))
    return [
        Streak(
            first=int(cells["first"][start]),
            last=int(cells["last"][end - 1]),
            updates=int(cells["n"][start:end].sum()),
            before=float(cells["scale_first"][start]),
            after=float(cells["after_last"][end - 1]),
            ongoing=end == len(cells),
        )
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if skipped[start]
    ]


def whole_skips(cells: Cells) -> Flags:
    """Return which cells hold only skipped updates, [n]."""
    found: Flags = cells["skipped"] == cells["n"]
    return found


def held_scale(cells: Cells, policy: ScalePolicy) -> Flags:
    """Return which updates were skipped without a smaller scale at the next update, [n].

    Either the skip did not lower the scale, or the script put it back. Skips that the policy's hysteresis lets pass do
    not count.
    """
    after = cells["after_last"].copy()
    together = cells["first"][1:] == cells["last"][:-1] + 1
    after[:-1] = np.where(together, cells["scale_first"][1:], after[:-1])
    found: Flags = whole_skips(cells) & (after >= cells["scale_first"]) & (cells["scale_first"] > 0)
    count = np.cumsum(found)
    anew = cells["moves"][:, GROW] > 0
    if policy.consecutive:
        anew |= ~whole_skips(cells)
    passed = np.maximum.accumulate(np.where(anew, count, 0))
    return np.asarray(found & (count - passed >= policy.hysteresis))


def newest_scale(scaler: ScalerCase) -> float:
    """Return the scale after the newest of `recent`, at least one."""
    return float(scaler.recent["after_last"][-1])


def is_alive(scale: float) -> bool:
    """Whether gradients can be divided by the scale. NaN is dead too."""
    return scale > DEAD_SCALE


def is_set_by_hand(cells: Cells) -> bool:
    """Whether most updates had their scale set by hand, as with mmengine's static scale."""
    return bool(2 * cells["moves"][:, MANUAL].sum() > cells["n"].sum())


def skips_to_death(scale: float, policy: ScalePolicy) -> int | None:
    """Return how many skips in a row make the scale dead. None if skips do not lower it, or not that far."""
    backoff_factor = policy.backoff_factor
    if not 0 < backoff_factor < 1 or not math.isfinite(scale) or not is_alive(scale):
        return None
    if is_alive(policy.min_scale):
        return None
    return math.ceil((math.log2(scale) + 128) / -math.log2(backoff_factor))


def calibrated_from(scaler: ScalerCase) -> int:
    """Return the first step after calibration. If it is not over, that is after all updates in `first`.

    A scaler first searches for a scale that fits, by skipping updates. That ends with `QUIET` updates without a skip,
    with a scale that grows, is set by hand or stays after a skip, or with an update applied at a scale below 1.
    """
    first = scaler.first
    if not len(first):
        return 0
    quiet = _quiet_from(first)
    other = np.flatnonzero(_ends_search(first, scaler.policy))
    at = min(quiet, int(other[0]) if len(other) else len(first))
    return int(first["first"][at]) if at < len(first) else int(first["last"][-1]) + 1


def _quiet_from(cells: Cells) -> int:
    """The place of the first cell from which on `QUIET` updates have no skip. The number of cells if there is none."""
    skips = np.flatnonzero(cells["skipped"])
    before = np.append(0, np.cumsum(cells["n"]))
    begins = np.append(0, skips + 1)
    quiet = before[np.append(skips, len(cells))] - before[begins]
    found = np.flatnonzero(quiet >= QUIET)
    return int(begins[found[0]]) if len(found) else len(cells)


def _ends_search(cells: Cells, policy: ScalePolicy) -> np.ndarray:
    moved = (cells["moves"][:, GROW] > 0) | (cells["moves"][:, MANUAL] > 0)
    below = (cells["scale_first"] < 1) & ~whole_skips(cells)
    return np.asarray(moved | held_scale(cells, policy) | below)


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
