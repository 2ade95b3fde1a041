"""How likely an update is to overflow at a scale, as a run shows it: what was tried, and how far that speaks for more.

Each update tried one scale. Of those at one scale the share that overflowed is what an update risks there; it can only
rise with the scale, so shares are pooled until they do (isotonic regression, which is the maximum-likelihood estimate
of current-status data: Groeneboom and Wellner 1992). A training changes, so the run is cut into parts of a few skips
each, and the parts around one speak for it the less the farther away they are. Of a scale that was not tried around
there no more is known than that its risk lies between those of the scales below and above.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from ampmon_server.analysis.policy.history import SAME, SPANS, History
from ampmon_server.analysis.policy.outliers import NOTHING, Drawn, Outliers
from ampmon_server.model.series import Floats, Ints


SKIPS_PER_PART = 12
PARTS_MAX = 24
FADING = 0.3
"""What the updates of a part say of the next one, against its own."""
LEAST = 0.1
"""A scale tried by fewer updates than this, after fading, was not tried."""
SLACK_MORE = 0.5
"""Added to what samples leave open: they are few."""
SAMPLES_LEAST = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """What one part of a run shows: ``levels`` [l], rising, each with how many updates ``tried`` it and the ``share``
    of them that overflowed, which does not fall. ``surely`` are levels at which its samples overflow for certain, in
    order, and at no more than ``slack`` below which they do.
    """

    levels: Floats
    tried: Floats
    share: Floats
    surely: list[float]
    slack: float

    def certainly(self, level: float) -> float:
        """The least that an update risks at a level, as samples have it."""
        return bisect_right(self.surely, level + SAME) / (len(self.surely) + 1)

    def perhaps(self, level: float) -> float:
        """The most."""
        if len(self.surely) < SAMPLES_LEAST:
            return 1.0
        return (bisect_right(self.surely, level + self.slack) + 1) / (len(self.surely) + 1)


class Ceiling:
    """What a history shows of overflow, part by part; ``part`` [s] is that of each of its stretches."""

    def __init__(self, history: History) -> None:
        self.part = _parts(history)
        self.outliers = Outliers(history)
        self.parts = int(self.part[-1]) + 1
        levels, level = history.levels
        tried = np.zeros((self.parts, len(levels)))
        overflowed = np.zeros_like(tried)
        real = history.skipped & ~history.hopeless
        np.add.at(tried, (self.part, level), history.length - history.hopeless)
        np.add.at(overflowed, (self.part, level), real)
        apart = np.abs(np.subtract.outer(np.arange(self.parts), np.arange(self.parts)))
        faded = FADING**apart
        surely = self._surely(history)
        slack = _slack(history)
        self._tried = [
            _tried(levels, some, over, sure, slack)
            for some, over, sure in zip(faded @ tried, faded @ overflowed, surely, strict=True)
        ]

    def _surely(self, history: History) -> list[list[float]]:
        stretch = np.searchsorted(history.ends, history.sample_at, side="right")
        part = self.part[np.minimum(stretch, len(self.part) - 1)]
        clean = ~np.isin(history.sample_at, history.ends[history.skipped] - 1)
        return [
            sorted(history.surely[clean & (part == each)].tolist()) for each in range(self.parts)
        ]

    def draw(self, worst: bool, random: np.random.Generator) -> Risk:
        """One of the ways it may be: risks drawn from what is known of each, the rest at its best or its worst."""
        drawn, outliers = [], self.outliers.draw(worst, random.spawn(1)[0])
        for part in self._tried:
            hits, misses = part.tried * part.share, part.tried * (1 - part.share)
            if worst:
                risks = random.beta(hits + 1 / self.parts, misses + NOTHING)
                drawn.append(np.minimum.accumulate(risks[::-1])[::-1].tolist())
            else:
                risks = random.beta(hits + NOTHING, misses + 1)
                drawn.append(np.maximum.accumulate(risks).tolist())
        return Risk(self._tried, drawn, outliers, worst)


class Risk:
    """One way it may be: how likely an update of a part is to overflow at a level."""

    def __init__(
        self, tried: list[Tried], drawn: list[list[float]], outliers: Drawn, worst: bool
    ) -> None:
        self.outliers = outliers
        self._tried, self._drawn, self._worst = tried, drawn, worst
        self._levels = [part.levels.tolist() for part in tried]
        self._known: dict[tuple[int, float], float] = {}

    def at(self, part: int, level: float) -> float:
        found = self._known.get((part, level))
        if found is None:
            found = self._known[part, level] = self._look(part, level)
        return found

    def _look(self, part: int, level: float) -> float:
        levels, drawn = self._levels[part], self._drawn[part]
        above = bisect_left(levels, level - SAME)
        if above < len(levels) and levels[above] <= level + SAME:
            risk = drawn[above]
        elif self._worst:
            risk = drawn[above] if above < len(levels) else 1.0
            risk = min(risk, self._tried[part].perhaps(level))
        else:
            risk = drawn[above - 1] if above else 0.0
        return max(risk, self._tried[part].certainly(level))


def _parts(history: History) -> Ints:
    by_skips = int(np.clip(history.skips // SKIPS_PER_PART, 1, PARTS_MAX))
    skips: Ints = np.cumsum(history.skipped) - history.skipped
    spans = (history.ends - 1) * SPANS // max(history.replayed, 1)
    parts = np.unique(skips * by_skips // (history.skips + 1) + spans, return_inverse=True)[1]
    return np.asarray(parts, np.int64)


def _slack(history: History) -> float:
    """How much earlier than their largest gradient says updates may overflow, in powers of two.

    Gradients of activations are larger than those of weights by about as much all along; and no sampled update that
    was clean was so by more than it had room.
    """
    stretch = np.searchsorted(history.ends, history.sample_at, side="right")
    room = history.surely - history.level[np.minimum(stretch, len(history.level) - 1)]
    return float(room[room > 0].min(initial=np.inf)) + SLACK_MORE


def _tried(
    levels: Floats, tried: Floats, overflowed: Floats, surely: list[float], slack: float
) -> Tried:
    known = tried >= LEAST
    share = _rising(overflowed[known] / tried[known], tried[known])
    return Tried(levels[known], tried[known], share, surely, slack)


def _rising(shares: Floats, weights: Floats) -> Floats:
    """The shares nearest to these, by weight, that do not fall: neighbours that do are pooled."""
    pools: list[list[float]] = []  # of each: mean, weight, how many
    for share, weight in zip(shares.tolist(), weights.tolist(), strict=True):
        pools.append([share, weight, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, heavy, many = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += many
    return np.repeat([mean for mean, _, _ in pools], [int(many) for _, _, many in pools])
