"""Simulates a run under another policy: skips, updates at each scale and underflow, as far as the run shows them.

Also finds the best of a few settings of torch's scaler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np

from ampmon.numerics.histogram import BINS
from ampmon_server.analysis.policy.history import History, scale_of
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.analysis.policy.replay import Replay, ReplayOutcome
from ampmon_server.analysis.policy.risks import OverflowRisks
from ampmon_server.analysis.policy.scalers import Setting, changed, recorded
from ampmon_server.analysis.policy.simulation import (
    Lost,
    Path,
    Recommended,
    Share,
    Simulation,
    Skips,
    Spent,
    sentence,
)
from ampmon_server.analysis.rescaling import elsewhere
from ampmon_server.analysis.whatif import coming_back, ranges
from ampmon_server.model.series import Floats, Ints


REPLAYS = 32
"""Replays of each of the four kinds: exact or drawn, at best or at worst."""
STRIDES_MAX = 100_000
"""Strides per kind after which no further replay is made. Each kind gets at least two replays."""

QUANTILES = ((0.03, 0.97), (0.05, 0.95), (0.05, 0.95))
"""The quantiles of the replays that bound the band: of exact replays, and of those drawn at best and at worst."""

FEWER, MORE = (0.1, -0.3), (0.05, 0.25)
"""How far another training differs beyond its draws: a share of the expected skips plus a constant, rounded down.

See docs/methods.md.
"""

SETTINGS_KEPT = 4
"""The simulator caches the replays of this many settings, so that another part of a path needs no new ones."""

SEED = 20260825

INTERVALS = (100, 200, 500, 1000, 2000, 5000)

GRID_REPLAYS = 4
"""Replays of each kind for each setting of the grid. Few, because the grid is large and only one setting is shown."""

SUBNORMAL_WEIGHT = 0.1
"""Cost of a subnormal element relative to a lost one: it keeps some of its bits."""

GAIN_LEAST = 0.002
"""The least gain, as a share of the computation, that is worth a change."""

CALM = 500
"""A scale at which at most one update in this many overflows is a good initial scale."""

_Replays: TypeAlias = list[ReplayOutcome]


class Simulator:
    """Simulates one history, which it analyses once. May be called from any thread."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._risks = OverflowRisks(history)
        exact, drawn = (
            [Replay(history, self._risks, exact=exact, worst=worst) for worst in (False, True)]
            for exact in (True, False)
        )
        self._kinds = (exact, drawn[:1], drawn[1:])
        self._underflow = UnderflowShares(history, self._risks.part)
        self._kept = lru_cache(maxsize=SETTINGS_KEPT)(self._made)

    def run(self, setting: Setting, replays: int = REPLAYS) -> Simulation:
        """Simulate ``setting`` with this many replays of each kind. The result is deterministic."""
        return self._kept(setting, replays)[0]

    def path(self, setting: Setting, places: Ints) -> Path:
        """Return the scale at ``places`` of replayed updates, which are in order, bounded as skips are."""
        replayed = self._kept(setting, REPLAYS)[1]
        levels = [np.stack([each.levels_at(places) for each in outcomes]) for outcomes in replayed]
        middle = np.quantile(levels[0], 0.5, 0, method="nearest")
        ends = _ends(levels)
        return Path(self.history.steps_at(places), ends.min(0), middle, ends.max(0))

    def _made(self, setting: Setting, replays: int) -> tuple[Simulation, list[_Replays]]:
        """The simulation, and its replays by kind, of which the exact ones are expected."""
        made = [self._replays(kinds, setting, replays) for kinds in self._kinds]
        skips = [np.array([outcome.skips for outcome in outcomes]) for outcomes in made]
        return self._simulation(setting, _band(skips, self.history.replayed), made[0]), made

    def recorded(self) -> Simulation:
        """Return the run as it was recorded."""
        history = self.history
        was = ReplayOutcome()
        for part, level, length in zip(
            self._risks.part.tolist(), history.level.tolist(), history.length.tolist(), strict=True
        ):
            was.spent[part, level] += length
        skips = Skips(history.skips, history.skips, history.skips)
        return self._simulation(recorded(history.policy), skips, [was])

    def recorded_path(self, places: Ints) -> Path:
        """Return the recorded scale at ``places``."""
        level = self.history.level[self.history.stretch_of(places)]
        return Path(self.history.steps_at(places), level, level, level)

    def _simulation(self, setting: Setting, skips: Skips, outcomes: _Replays) -> Simulation:
        spent = [outcome.spent for outcome in outcomes]
        return Simulation(
            setting,
            self.history.replayed,
            skips,
            _mean_spent(spent),
            self._underflow.mean(spent),
            _ended(outcomes),
        )

    def _replays(self, kinds: list[Replay], setting: Setting, replays: int) -> _Replays:
        """Replays, equally many of each kind: fewer than ``replays`` if they take too many strides."""
        # A long run's newest updates do not include calibration, so they begin at the recorded scale.
        from_start = self.history.is_whole or setting.kind == "fixed"
        scale = None if from_start else scale_of(self.history.level[0])
        # The same numbers for each kind: they differ by what they assume, not by luck.
        randoms = [np.random.default_rng(SEED) for _ in kinds]
        made: _Replays = []
        strides = 0
        for done in range(replays):
            if done >= 2 and strides >= STRIDES_MAX * len(kinds):
                break
            for replay, random in zip(kinds, randoms, strict=True):
                risk = self._risks.draw(replay.worst, random)
                machine = setting.machine(scale, self.history.tracker, self.history.policy)
                made.append(replay.run(machine, risk, random))
                strides += made[-1].strides
        return made


def _ends(values: Sequence[Floats | Ints]) -> np.ndarray:
    """The `QUANTILES` of the values of r replays of each kind, [r] or [r, p]: [6] or [6, p]."""
    return np.concatenate(
        [
            np.quantile(each, within, 0, method="nearest")
            for each, within in zip(values, QUANTILES, strict=True)
        ]
    )


def _band(skips: Sequence[Ints], updates: int) -> Skips:
    ends, expected = _ends(skips), float(np.mean(skips[0]))
    fewer, more = (max(int(share * expected + least), 0) for share, least in (FEWER, MORE))
    return Skips(max(int(ends.min()) - fewer, 0), expected, min(int(ends.max()) + more, updates))


def _mean_spent(replays: Sequence[Mapping[tuple[int, float], int]]) -> tuple[Spent, ...]:
    spent: Counter[float] = Counter()
    for replay in replays:
        for (_, level), updates in replay.items():
            spent[level] += updates
    return tuple(Spent(scale_of(level), spent[level] / len(replays)) for level in sorted(spent))


def _ended(outcomes: _Replays) -> str | None:
    why = [outcome.ended for outcome in outcomes if outcome.ended is not None]
    return why[0] if 2 * len(why) > len(outcomes) else None


class UnderflowShares:
    """Mean shares of the elements on fp16's grid in the samples of each part of a run.

    ``part`` [s] is the part of each stretch. An element flushed at the sample's scale is a zero. At a larger scale, the
    low end leaves out the zeros that may come back.
    """

    def __init__(self, history: History, part: Ints) -> None:
        on_grid, stretch = history.samples.on_grid, history.stretch_of(history.sample_at)
        seen = (on_grid.elements > 0) & (on_grid.inf + on_grid.nan == 0)
        elements = np.maximum(on_grid.elements, 1)
        # Rounded, because histograms are shifted by whole bits.
        self._levels, place = np.unique(np.round(history.level[stretch]), return_inverse=True)
        shape = int(part[-1]) + 1, len(self._levels)
        self._histogram = np.zeros((*shape, BINS))
        self._zeros, self._samples = np.zeros(shape), np.zeros(shape)
        where = part[stretch][seen], place[seen]
        np.add.at(self._histogram, where, (on_grid.histogram / elements[:, None])[seen])
        np.add.at(self._zeros, where, (on_grid.zeros / elements)[seen])
        np.add.at(self._samples, where, 1.0)
        self._at = cache(self._look)

    def mean(self, replays: Iterable[Mapping[tuple[int, float], int]]) -> Lost | None:
        """Return the mean over all updates of replays that spent them in these parts, at these levels of the scale.

        None if no update was sampled.
        """
        total, sums = 0.0, np.zeros((2, 3))
        for spent in replays:
            for (part, level), updates in spent.items():
                # A scale of 0 has the level -inf, which cannot be rounded.
                shares = self._at(part, round(max(level, -200.0)))
                if shares is not None:
                    total += updates
                    sums += updates * shares
        if not total:
            return None
        zero, subnormal = (sums / total).tolist()
        return Lost(Share(*zero), Share(*subnormal))

    def _look(self, part: int, level: int) -> Floats | None:
        """Both shares of the part's samples, or of all samples if it has none, [2, 3]: low, expected and high."""
        rows = slice(part, part + 1) if self._samples[part].any() else slice(None)
        samples = self._samples[rows].sum(0)
        if not samples.any():
            return None
        zeros = self._zeros[rows].sum(0)
        sums = np.zeros((2, 3))
        for place in np.flatnonzero(samples):
            bits = level - round(float(self._levels[place]))
            n = float(samples[place])
            histogram, already = self._histogram[rows, place].sum(0) / n, float(zeros[place]) / n
            found = elsewhere(histogram, np.ones(()), bits)
            within = ranges(histogram, already, bits)
            low, high = within["underflow"]
            middle = (found.flushed_least + found.flushed_most) / 2
            back = coming_back(histogram, already, bits)
            zero = already + low - back, already + middle, already + high
            low, high = within["subnormal"]
            middle = (found.subnormal_least + found.subnormal_most) / 2
            sums += n * np.array([zero, (low, middle, high)])
        return np.asarray(sums / samples.sum(), np.float64)


@dataclass(frozen=True, slots=True)
class Advice:
    """The best setting, simulated, or the run's own if none gains. ``words`` describe its gain; ``code`` applies it.

    ``second`` says why it is only an alternative. It is empty for what the run's findings recommend.
    """

    words: str
    code: str
    simulation: Simulation
    second: str = ""


def advise(simulator: Simulator, recommended: Recommended) -> Advice:
    """Return the setting that the findings recommend, else the best of a small grid around the run's own."""
    was, policy = simulator.recorded(), simulator.history.policy
    if recommended.setting:
        simulation = simulator.run(changed("torch", policy, **recommended.setting))
        return Advice(sentence(was, simulation), recommended.code, simulation)
    tried = [simulator.run(setting, GRID_REPLAYS) for setting in _grid(simulator.history)]
    best = simulator.run(min(filter(_is_sure, tried), key=_cost, default=was).setting)
    if not _is_sure(best) or _cost(was) - _cost(best) < GAIN_LEAST:
        return Advice("No tested setting is clearly better.", "", was)
    code = in_settings_of(policy, best.setting.code(policy))
    return Advice(sentence(was, best), code, best, recommended.standing(same=False))


def _is_sure(simulation: Simulation) -> bool:
    return simulation.skips.known and simulation.ended is None


def _grid(history: History) -> list[Setting]:
    own = recorded(history.policy)
    # Only a replay from the first update on depends on the initial scale.
    scales = {own.init_scale, *_calm_scales(history)} if history.is_whole else {own.init_scale}
    intervals = {own.growth_interval, *INTERVALS}
    return [
        replace(own, init_scale=scale, growth_interval=interval)
        for scale in sorted(scales)
        for interval in sorted(each for each in intervals if each is not None)
    ]


def _calm_scales(history: History) -> Iterator[float]:
    """The largest scale with at most one known overflow in `CALM` updates, and the largest with no known overflow."""
    levels, place = np.unique(history.level, return_inverse=True)
    skipped = np.bincount(place, weights=history.skipped)
    through = np.bincount(place, weights=history.length - history.skipped)
    # An overflow at one scale is one at every larger scale. An update that fits fits at every smaller scale.
    overflowed, held = np.cumsum(skipped), np.cumsum(through[::-1])[::-1]
    for most in (1 / CALM, 0.0):
        calm = levels[(overflowed <= most * (overflowed + held)) & (held > 0)]
        yield from map(scale_of, calm[-1:].tolist())


def _cost(simulation: Simulation) -> float:
    """The share of the computation that is lost: skipped updates, zeros, and part of the subnormal elements."""
    skipped = simulation.skips.expected / simulation.updates
    if simulation.lost is None:
        return skipped
    lost = simulation.lost
    return skipped + lost.zero.expected + SUBNORMAL_WEIGHT * lost.subnormal.expected
