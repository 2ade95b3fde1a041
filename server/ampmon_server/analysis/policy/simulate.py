"""Simulates a run under another policy: skips, updates at each scale and underflow, as far as the run shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.replay import Replay, ReplayOutcome
from ampmon_server.analysis.policy.risks import OverflowRisks
from ampmon_server.analysis.policy.scalers import Setting, recorded
from ampmon_server.analysis.policy.underflow import Lost, UnderflowShares
from ampmon_server.model.series import Floats, Ints


REPLAYS = 32
"""Replays of each of the four kinds: exact or drawn, at best or at worst."""
STRIDES_MAX = 100_000
"""Strides per kind after which no further replay is made. Each kind gets at least two replays."""

KEPT, DRAWN = (0.03, 0.97), (0.05, 0.95)
"""The quantiles of the replays that bound the band: of exact replays, and of drawn ones."""

FEWER, MORE = (0.1, -0.3), (0.05, 0.25)
"""How far another training differs beyond its draws: a share of the expected skips plus a constant, rounded down.

See docs/methods.md.
"""

BAND_SHARE, BAND_LEAST = 0.3, 3
"""A band that is wider than this share of the expected skips and than this many skips is inconclusive."""

SETTINGS_KEPT = 4
"""The simulator caches the replays of this many settings, so that another part of a path needs no new ones."""

SEED = 20260825


@dataclass(frozen=True, slots=True)
class Skips:
    """How many updates are skipped, between ``low`` and ``high``. ``known`` says whether that band is narrow."""

    low: int
    expected: float
    high: int

    @property
    def known(self) -> bool:
        return self.high - self.low <= max(BAND_LEAST, BAND_SHARE * self.expected)


@dataclass(frozen=True, slots=True)
class Spent:
    """The mean number of updates at a scale, which need not be a power of two."""

    scale: float
    updates: float


@dataclass(frozen=True, slots=True)
class Path:
    """log2 of the scale at ``steps`` [p]: expected, and its bounds, [p] each. NaN once the training has ended."""

    steps: Ints
    low: Floats
    expected: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Simulation:
    """A run under ``setting``. ``updates`` counts the replayed updates, from step ``first`` to ``last``.

    ``lost`` is of all their elements, None if the run was not sampled. ``ended`` says why training ends early in most
    replays, None if it does not. ``path`` is None if it was not requested.
    """

    setting: Setting
    first: int
    last: int
    updates: int
    skips: Skips
    scales: tuple[Spent, ...]
    lost: Lost | None
    ended: str | None
    path: Path | None = None


class _Made(NamedTuple):
    """A simulation without a path, and its replays: the exact ones, ``sure``, and the ``drawn`` ones by kind."""

    simulation: Simulation
    sure: list[ReplayOutcome]
    drawn: list[list[ReplayOutcome]]


class Simulator:
    """Simulates one history, which it analyses once. May be called from any thread."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._ceiling = OverflowRisks(history)
        self._exact, self._drawn = (
            [Replay(history, self._ceiling, exact=exact, worst=worst) for worst in (False, True)]
            for exact in (True, False)
        )
        self._underflow = UnderflowShares(history, self._ceiling)
        self._kept = lru_cache(maxsize=SETTINGS_KEPT)(self._made)

    def run(
        self, setting: Setting, replays: int = REPLAYS, places: Ints | None = None
    ) -> Simulation:
        """Simulate ``setting`` with this many replays of each kind. The result is deterministic.

        ``places`` are places of replayed updates, in order. If given, the result has the path of the scale there.
        """
        made = self._kept(setting, replays)
        if places is None:
            return made.simulation
        return replace(made.simulation, path=self._path(places, made.sure, made.drawn))

    def _made(self, setting: Setting, replays: int) -> _Made:
        sure, *drawn = (
            self._replays(kinds, setting, replays)
            for kinds in (self._exact, *([each] for each in self._drawn))
        )
        expected = float(np.mean([outcome.skips for outcome in sure]))
        ends: list[float] = []
        for outcomes, within in _within(sure, drawn):
            skips = [outcome.skips for outcome in outcomes]
            ends += np.quantile(skips, within, method="nearest").tolist()
        simulation = Simulation(
            setting,
            self.history.first,
            self.history.last,
            self.history.replayed,
            _band(ends, expected),
            _spent(sure),
            self._underflow.mean(sure),
            _ended(sure),
        )
        return _Made(simulation, sure, drawn)

    def recorded(self, places: Ints | None = None) -> Simulation:
        """Return the run as it was recorded."""
        history = self.history
        was = ReplayOutcome(skips=history.skips, updates=history.replayed)
        for part, level, length in zip(
            self._ceiling.part.tolist(),
            history.level.tolist(),
            history.length.tolist(),
            strict=True,
        ):
            was.spent[part, level] += length
        lost = self._underflow.mean([was])
        skips = Skips(history.skips, history.skips, history.skips)
        return Simulation(
            recorded(history.policy),
            history.first,
            history.last,
            history.replayed,
            skips,
            _spent([was]),
            lost,
            None,
            None if places is None else self._recorded_path(places),
        )

    def _recorded_path(self, places: Ints) -> Path:
        level = self.history.level[np.searchsorted(self.history.ends, places, side="right")]
        return Path(self.history.steps_at(places), level, level, level)

    def _path(
        self, places: Ints, sure: list[ReplayOutcome], drawn: list[list[ReplayOutcome]]
    ) -> Path:
        """The path, bounded as skips are: by quantiles of the replays of each kind."""
        ends: list[Floats] = []
        for outcomes, within in _within(sure, drawn):
            ends.extend(np.quantile(_levels(outcomes, places), within, 0, method="nearest"))
        middle = np.quantile(_levels(sure, places), 0.5, 0, method="nearest")
        return Path(self.history.steps_at(places), np.min(ends, 0), middle, np.max(ends, 0))

    def _replays(self, kinds: list[Replay], setting: Setting, replays: int) -> list[ReplayOutcome]:
        """Replays, equally many of each kind: fewer than ``replays`` if they take too many strides."""
        # A long run's newest updates do not include calibration, so they begin at the recorded scale.
        scale = None if self.history.is_whole or setting.kind == "fixed" else self._begun
        randoms = [np.random.default_rng(SEED) for _ in kinds]
        made: list[ReplayOutcome] = []
        strides = 0
        for done in range(replays):
            if done >= 2 and strides >= STRIDES_MAX * len(kinds):
                break
            for replay, random in zip(kinds, randoms, strict=True):
                risk = self._ceiling.draw(replay.worst, random)
                made.append(replay.run(setting.machine(scale), risk, random))
                strides += made[-1].strides
        return made

    @property
    def _begun(self) -> float:
        return float(2.0 ** self.history.level[0])


def _levels(outcomes: list[ReplayOutcome], places: Ints) -> Floats:
    """The levels of r replays at p places, [r, p]."""
    return np.stack([each.levels_at(places) for each in outcomes])


def _within(
    sure: list[ReplayOutcome], drawn: list[list[ReplayOutcome]]
) -> list[tuple[list[ReplayOutcome], tuple[float, float]]]:
    return [(sure, KEPT), *((outcomes, DRAWN) for outcomes in drawn)]


def _band(ends: list[float], expected: float) -> Skips:
    fewer, more = (max(int(share * expected + least), 0) for share, least in (FEWER, MORE))
    return Skips(max(int(min(ends)) - fewer, 0), expected, int(max(ends)) + more)


def _spent(outcomes: list[ReplayOutcome]) -> tuple[Spent, ...]:
    spent: Counter[float] = Counter()
    for outcome in outcomes:
        for (_, level), updates in outcome.spent.items():
            spent[level] += updates
    return tuple(Spent(2.0**level, spent[level] / len(outcomes)) for level in sorted(spent))


def _ended(outcomes: list[ReplayOutcome]) -> str | None:
    why = [outcome.ended for outcome in outcomes if outcome.ended is not None]
    return why[0] if 2 * len(why) > len(outcomes) else None
