"""Simulates the loss scale over a run: growth after an interval, back-off at a drifting limit, and manual spikes.

Pure numpy, independent of tables and servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampmon_server.model.aggregates.updates import EVENTS


INTERVAL = 2000
"""Updates without an overflow after which a scaler doubles its scale: torch's default."""

SPIKE = 2.0**24
STEADY, GROW, BACKOFF, SET = map(EVENTS.index, ("steady", "grow", "backoff", "manual_set"))


@dataclass(frozen=True, slots=True)
class Track:
    """Arrays [n] of n updates, in order of step from 0. ``event`` is an index into `EVENTS`."""

    scale: npt.NDArray[np.float64]
    scale_after: npt.NDArray[np.float64]
    growth_tracker: npt.NDArray[np.int64]
    event: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.scale)

    def moves(self, within: slice = slice(None)) -> Iterator[tuple[float, float, int, int]]:
        """The scale before and after, the growth tracker and the event of each update."""
        columns = (self.scale, self.scale_after, self.growth_tracker, self.event)
        return zip(*(column[within].tolist() for column in columns), strict=True)

    @property
    def skipped(self) -> npt.NDArray[np.bool_]:
        """Updates whose optimizer found a value that is not finite."""
        return np.asarray(self.event == BACKOFF)


def track(
    updates: int, spikes: Sequence[int] = (), seed: int = 0, interval: int = INTERVAL
) -> Track:
    """A scaler's ``updates``. The scale doubles after ``interval`` updates without an overflow.

    At each step of ``spikes`` the scale is 2^24 for one update, set manually before and after it.
    """
    exponents, lengths, backed_off = _stretches(updates, np.random.default_rng(seed), interval)
    ends = np.cumsum(lengths)
    scale = np.repeat(2.0**exponents, lengths)[:updates]
    tracker = (np.arange(ends[-1]) - np.repeat(ends - lengths, lengths) + 1)[:updates]
    event = np.full(updates, STEADY)
    last = ends[:-1] - 1  # the last update of each stretch, except for the newest stretch
    moves = np.where(backed_off[:-1], BACKOFF, GROW)
    event[last[last < updates]] = moves[last < updates]
    tracker[event != STEADY] = 0
    at = np.asarray(spikes, np.int64)
    scale[at] = SPIKE
    event[np.concatenate([at, at[at > 0] - 1])] = SET
    return Track(scale, np.append(scale[1:], scale[-1]), tracker, event)


def spikes(updates: int, count: int) -> list[int]:
    """``count`` random steps within ``updates``, no two of them adjacent."""
    places = np.random.default_rng(0).choice((updates - 2) // 2, count, replace=False)
    return sorted((2 * places + 1).tolist())


def _stretches(
    updates: int, chance: np.random.Generator, interval: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Stretches of one scale: exponent, length in updates, and whether a back-off ends it instead of a growth."""
    exponents, lengths, backed_off = [], [], []
    exponent, limit, done = 16, 18, 0
    while done <= updates:
        over = exponent >= limit
        length = int(chance.geometric(0.02)) if over else interval
        overflows = over and length < interval
        exponents.append(exponent)
        lengths.append(length)
        backed_off.append(overflows)
        exponent += -1 if overflows else 1
        done += length
        if chance.random() < 0.05:  # gradients shrink or grow during training
            limit = int(np.clip(limit + chance.choice([-1, 1]), 12, 20))
    return np.array(exponents), np.array(lengths), np.array(backed_off)
