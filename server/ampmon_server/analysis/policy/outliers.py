"""Models overflows that no growth of the scale caused: single batches with gradients many times the usual ones.

The factor is unknown. Such an update overflows at every scale above a level of its own. A run bounds these levels by
the scales at which outliers overflowed, and by those at which none did for longer than outliers are apart.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from ampmon_server.analysis.policy.history import SAME, History
from ampmon_server.model.series import Flags, Floats, Ints


CALM = 10
"""After this many clean updates in a row at one scale, an overflow is not part of the search for a scale that fits."""
SOON = 3
"""A growth causes the overflows in the first third of the growth interval after it."""
SOONER = 3
"""Usual batches that overflow do so at least this many times as often soon after a growth as later."""
NOTHING = 1e-3
"""Weight of the prior of a risk before anything was tried: almost nothing."""


class Outliers:
    """The outliers of a history. ``steady`` [s] marks stretches that end in an overflow at a steady scale."""

    def __init__(self, history: History) -> None:
        self._levels, self._place = history.levels
        self.steady, late = _steady(history)
        grown = history.skipped & ~self.steady & ~history.hopeless
        grown &= history.ends > _searched(history)
        self._overflowed = self._at_levels(self.steady)
        passed = self._at_levels(_passed(history, self.steady)) - self._overflowed
        # Outliers that pass at larger scales would pass at smaller ones too.
        missed = np.minimum.accumulate(np.maximum(np.cumsum(passed[::-1])[::-1], 0))
        self._missed = missed - np.append(missed[1:], 0)
        self._late = np.maximum(self._at_levels(late), 1)
        self._early = np.maximum(self._at_levels(history.length - late), 1)
        self._grown = self._at_levels(grown)

    def draw(self, worst: bool, random: np.random.Generator) -> Drawn:
        """Draw one possibility. A Gamma variate divided by the sum of it and another is a Beta variate."""
        more, fewer = (1.0, NOTHING) if worst else (NOTHING, 1.0)
        hits = random.gamma(more) + np.cumsum(random.gamma(self._overflowed))
        misses = random.gamma(fewer) + np.cumsum(random.gamma(self._missed)[::-1])[::-1]
        early = random.gamma(self._grown + NOTHING) / self._early
        late = random.gamma(self._overflowed + 1) / self._late
        outliers = np.clip(1 - early / (SOONER * late), 0, 1)
        share = hits / (hits + misses)
        return Drawn(self._levels.tolist(), share.tolist(), outliers.tolist(), worst)

    def _at_levels(self, weights: Floats | Ints | Flags) -> Floats:
        return np.asarray(np.bincount(self._place, weights, len(self._levels)), np.float64)


class Drawn:
    """The ``share`` of outliers that overflow at each of the ascending ``levels``. It rises with the level.

    ``outliers`` is, at each level, the share of overflows at a steady scale that come from outliers at all.
    """

    def __init__(
        self, levels: list[float], share: list[float], outliers: list[float], worst: bool
    ) -> None:
        self._levels, self._share, self._outliers, self._worst = levels, share, outliers, worst

    def again(self, recorded: float, level: float, usual: float) -> float:
        """How likely an overflow at a steady scale is to recur at a smaller level. ``usual``: that of a usual batch."""
        place = bisect_left(self._levels, recorded - SAME)
        again = self._at(level) / self._share[place] if self._share[place] > 0 else 1.0
        return usual + self._outliers[place] * (again - usual)

    def _at(self, level: float) -> float:
        above = bisect_left(self._levels, level - SAME)
        if self._worst or self._levels[above] <= level + SAME:
            return self._share[above]
        return self._share[above - 1] if above else 0.0


def _steady(history: History) -> tuple[Flags, Ints]:
    """Which stretches end in an overflow at a steady scale, and how many updates of each would if they overflowed.

    Such an overflow comes at least `CALM` updates after the scale fell, long after it grew, or right after another one.
    """
    soon = max(CALM, -(-history.policy.growth_interval // SOON))
    found = np.zeros(len(history.level), np.bool_)
    late = np.zeros(len(history.level), np.int64)
    streak, grew, steady, before = 0, False, False, np.inf
    for at, (level, length, skipped) in enumerate(
        zip(history.level.tolist(), history.length.tolist(), history.skipped.tolist(), strict=True)
    ):
        if level != before:
            streak, grew, before = 0, level > before, level
        first = soon if grew else CALM
        late[at] = max(min(length, streak + length - first), 0)
        streak += length - skipped
        if skipped:
            found[at] = steady = streak >= first or (steady and not grew)
            streak, grew = 0, False
    return found & ~history.hopeless, late


def _searched(history: History) -> int:
    """The place where the search for the first scale ends and the first `CALM` clean updates in a row begin."""
    calm = history.length - history.skipped >= CALM
    place = int(np.argmax(calm)) if calm.any() else -1
    return int(history.ends[place] - history.length[place] * calm[place])


def _passed(history: History, steady: Flags) -> Floats:
    """How many outliers would have overflowed in the clean updates of each stretch, had the scale been larger, [s].

    Outliers may be periodic. If the scale grows again after each, it is large whenever the next one comes, and the
    updates between at smaller scales say nothing. So an update counts only if the smallest gap between two outliers has
    passed since the last one.
    """
    places = history.ends[steady] - 1
    events = places[np.diff(places, prepend=-CALM) >= CALM]
    if len(events) < 2:
        return np.zeros(len(steady))
    gaps = np.diff(events)
    starts, ends = history.ends - history.length, history.ends - history.skipped
    after = np.append(history.replayed, events + gaps.min())[np.searchsorted(events, starts)]
    return np.asarray(np.maximum(ends - np.maximum(starts, after), 0) / gaps.mean(), np.float64)
