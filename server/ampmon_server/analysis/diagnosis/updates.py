"""Reads a scaler's updates for the rules: streaks of skips, moves of the scale, and its newest value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import MOVES
from ampmon_server.model.case import ScalePolicy, ScalerCase
from ampmon_server.model.series import Flags


GROW, CAPPED, BACKOFF, MANUAL, DEAD = range(len(MOVES))

DEAD_SCALE = 2.0**-128
"""At this scale and below, ``1/scale`` is not finite in fp32."""


@dataclass(frozen=True, slots=True)
class Streak:
    """Skipped updates in a row. ``after`` is the scale that the last of them left."""

    first: int
    last: int
    updates: int
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


def since(cells: Cells, step: int) -> Cells:
    """Return the cells that begin at ``step`` or later."""
    return cells[cells["first"] >= step]


def newest_scale(scaler: ScalerCase) -> float | None:
    """Return the scale after the newest update. None if there is no update."""
    return float(scaler.recent["after_last"][-1]) if len(scaler.recent) else None


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
