"""Estimates from a run how likely an update is to overflow at a scale.

Each update tries one scale. The share of updates at a scale that overflowed is the risk there. Risk can only rise with
the scale, so shares are pooled until they do: isotonic regression, the maximum-likelihood estimate of current-status
data (Groeneboom and Wellner 1992). A training changes, so the run is cut into parts of a few skips each. Other parts
count for a part the less, the farther away they are. The risk of a scale not tried nearby is only known to lie between
those of the scales below and above.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cache

import numpy as np

from ampmon_server.analysis.policy.history import SAME, SPANS, History
from ampmon_server.model.series import Flags, Floats, Ints


SKIPS_PER_PART = 12
PARTS_MAX = 24
FADING = 0.3
"""Weight of a part's updates for the next part, relative to its own."""
LEAST = 0.1
"""A scale tried by fewer updates than this, after fading, counts as not tried."""
SLACK_MORE = 0.5
"""Added to the slack from samples, in powers of two, because samples are few."""
SAMPLES_LEAST = 3

CALM = 10
"""After this many clean updates in a row at one scale, an overflow is not part of the search for a scale that fits."""
SOON = 3
"""A growth causes the overflows in the first third of the growth interval after it."""
SOONER = 3
"""Usual batches that overflow do so at least this many times as often soon after a growth as later."""
NOTHING = 1e-3
"""Weight of the prior of a risk before anything was tried: almost nothing."""


@dataclass(frozen=True, slots=True)
class RiskEvidence:
    """What one part of a run shows of its risks.

    ``tried`` [l] is the number of updates at each of the ascending ``levels`` [l]. ``share`` [l] is the share of them
    that overflowed; it never falls. ``surely`` are the levels, in order, at which its samples certainly overflow. They
    may overflow up to ``slack`` below.
    """

    levels: Floats
    tried: Floats
    share: Floats
    surely: list[float]
    slack: float

    def certainly(self, level: float) -> float:
        """The lower bound of an update's risk at a level, by its samples."""
        # A further update is as likely to lie in any gap between the samples as beyond them.
        return bisect_right(self.surely, level + SAME) / (len(self.surely) + 1)

    def perhaps(self, level: float) -> float:
        """The upper bound of an update's risk at a level, by its samples."""
        if len(self.surely) < SAMPLES_LEAST:
            return 1.0
        return (bisect_right(self.surely, level + self.slack) + 1) / (len(self.surely) + 1)


class OverflowRisks:
    """The risks of overflow that a history shows, part by part. ``part`` [s] is the part of each stretch."""

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
        part = self.part[history.stretch_of(history.sample_at)]
        # A skip counts as an overflow already: its sample would count it twice.
        clean = ~np.isin(history.sample_at, history.ends[history.skipped] - 1)
        return [
            sorted(history.surely[clean & (part == each)].tolist()) for each in range(self.parts)
        ]

    def draw(self, worst: bool, random: np.random.Generator) -> Risk:
        """Draw one possible set of risks from what is known. What is unknown is at its best or its ``worst``."""
        drawn, outliers = [], self.outliers.draw(worst, random.spawn(1)[0])
        for part in self._tried:
            hits, misses = part.tried * part.share, part.tried * (1 - part.share)
            # An imprecise prior, at its worst or best: Jeffreys' predicted skips that never came.
            if worst:
                risks = random.beta(hits + 1 / self.parts, misses + NOTHING)
                drawn.append(np.minimum.accumulate(risks[::-1])[::-1].tolist())
            else:
                risks = random.beta(hits + NOTHING, misses + 1)
                drawn.append(np.maximum.accumulate(risks).tolist())
        return Risk(self._tried, drawn, outliers, worst)


class Risk:
    """One possible set of risks. ``at(part, level)`` is how likely an update of a part is to overflow at a level."""

    def __init__(
        self, tried: list[RiskEvidence], drawn: list[list[float]], outliers: Drawn, worst: bool
    ) -> None:
        self.outliers = outliers
        self._tried, self._drawn, self._worst = tried, drawn, worst
        self._levels = [part.levels.tolist() for part in tried]
        self.at = cache(self._look)

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
    """How far below the level of their largest gradient updates may overflow, in powers of two.

    Activation gradients exceed those of weights by about the same factor throughout the run. The least room of a
    sampled update bounds that factor.
    """
    room = history.surely - history.level[history.stretch_of(history.sample_at)]
    return float(room[room > 0].min(initial=np.inf)) + SLACK_MORE


def _tried(
    levels: Floats, tried: Floats, overflowed: Floats, surely: list[float], slack: float
) -> RiskEvidence:
    known = tried >= LEAST
    share = _rising(overflowed[known] / tried[known], tried[known])
    return RiskEvidence(levels[known], tried[known], share, surely, slack)


def _rising(shares: Floats, weights: Floats) -> Floats:
    """The weighted isotonic regression of the shares: neighbours that fall are pooled."""
    pools: list[list[float]] = []  # [mean, weight, number of shares]
    for share, weight in zip(shares.tolist(), weights.tolist(), strict=True):
        pools.append([share, weight, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, heavy, many = pools.pop()
            last = pools[-1]
            last[0] = (last[0] * last[1] + mean * heavy) / (last[1] + heavy)
            last[1] += heavy
            last[2] += many
    return np.repeat([mean for mean, _, _ in pools], [int(many) for _, _, many in pools])


class Outliers:
    """Overflows of a history that no growth of the scale caused: single batches with gradients far above usual ones.

    By how much is unknown. Such an update overflows at every scale above a level of its own. A run bounds these levels
    by the scales at which outliers overflowed, and by those at which none did for longer than outliers are apart.
    ``steady`` [s] marks stretches that end in an overflow at a steady scale.
    """

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
        # A level without any outlier adds nothing: a Gamma variate of shape 0 is 0.
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
