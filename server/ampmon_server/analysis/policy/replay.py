"""Replays a run under another policy, stretch by stretch, jumping from one overflow or growth to the next."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from ampmon_server.analysis.policy.history import SAME, History
from ampmon_server.analysis.policy.risks import OverflowRisks, Risk
from ampmon_server.analysis.policy.scalers import FOREVER, ScalerModel
from ampmon_server.model.series import Floats, Ints


@dataclass(slots=True)
class ReplayOutcome:
    """The outcome of one replay. ``spent`` counts updates by the part of the run and the level of the scale.

    ``strides`` counts the jumps from one skip, growth or recorded change to the next. The scale is at each of
    ``levels`` [l] until as many updates are done as ``ends`` [l] says.
    """

    skips: int = 0
    updates: int = 0
    strides: int = 0
    spent: defaultdict[tuple[int, float], int] = field(default_factory=lambda: defaultdict(int))
    ended: str | None = None
    ends: list[int] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)

    def levels_at(self, places: Ints) -> Floats:
        """Return the level at the updates at ``places`` [p]. NaN once the training has ended."""
        levels = np.append(self.levels, np.nan)
        return levels[np.searchsorted(self.ends, places, side="right")]


class Replay:
    """Replays of one history.

    ``exact`` keeps what each update did: one skipped at a scale is skipped at any larger scale. Otherwise updates are
    random draws with the risk of their part of the run, because another training, with other weights, overflows as
    often but in other updates. ``worst`` assumes the worst wherever the run leaves a risk open.
    """

    def __init__(self, history: History, risks: OverflowRisks, *, exact: bool, worst: bool) -> None:
        self._exact = exact
        self.worst = worst
        self._stretches = list(
            zip(
                risks.part.tolist(),
                history.level.tolist(),
                (history.length - history.skipped).tolist(),
                history.skipped.tolist(),
                (history.nan if worst else history.hopeless).tolist(),
                risks.outliers.steady.tolist(),
                strict=True,
            )
        )

    def run(self, machine: ScalerModel, risk: Risk, random: np.random.Generator) -> ReplayOutcome:
        """Drive ``machine`` through the history, to its end or until the machine ends the training."""
        outcome = ReplayOutcome()
        uniform = _Uniform(random)
        for part, recorded, calm, skipped, nan, steady in self._stretches:
            left = calm
            while left:
                outcome.strides += 1
                level = _level(machine.scale)
                hazard = self._hazard(risk, part, recorded, level)
                room = min(left, machine.until_growth)
                gap = uniform.gap(hazard)
                done = min(gap, room)
                machine.clean(done)
                _count(outcome, (part, level), done)
                left -= done
                if gap < room:
                    left -= 1
                    _overflow(outcome, machine, (part, level))
                if machine.ended:
                    return outcome
            if skipped:
                outcome.strides += 1
                level = _level(machine.scale)
                if nan or uniform.next() < self._again(risk, part, recorded, level, steady):
                    _overflow(outcome, machine, (part, level))
                    if machine.ended:
                        return outcome
                else:
                    machine.clean(1)
                    _count(outcome, (part, level), 1)
        return outcome

    def _hazard(self, risk: Risk, part: int, recorded: float, level: float) -> float:
        """How likely an update that was clean at the recorded level is to overflow at ``level``."""
        if not self._exact:
            return risk.at(part, level)
        if level <= recorded + SAME:
            return 0.0
        # Those that overflow at the recorded level would here too, so neither share counts them.
        clean = 1.0 - risk.at(part, recorded)
        return (risk.at(part, level) - 1.0 + clean) / clean if clean > 0 else 1.0

    def _again(self, risk: Risk, part: int, recorded: float, level: float, steady: bool) -> float:
        """How likely an update that overflowed at the recorded level is to overflow at ``level``."""
        if not self._exact:
            return risk.at(part, level)
        if level >= recorded - SAME:
            return 1.0
        overflowed = risk.at(part, recorded)
        usual = risk.at(part, level) / overflowed if overflowed > 0 else 1.0
        return risk.outliers.again(recorded, level, usual) if steady else usual


def _count(outcome: ReplayOutcome, place: tuple[int, float], updates: int) -> None:
    outcome.updates += updates
    outcome.spent[place] += updates
    level = place[1]
    if outcome.levels and outcome.levels[-1] == level:
        outcome.ends[-1] = outcome.updates
    else:
        outcome.ends.append(outcome.updates)
        outcome.levels.append(level)


def _overflow(outcome: ReplayOutcome, machine: ScalerModel, place: tuple[int, float]) -> None:
    _count(outcome, place, 1)
    outcome.skips += 1
    machine.overflow()
    outcome.ended = machine.ended


def _level(scale: float) -> float:
    return math.log2(scale) if scale > 0 else -math.inf


class _Uniform:
    """Random numbers, drawn in blocks: single draws would cost more than all else."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._block: list[float] = []

    def next(self) -> float:
        if not self._block:
            self._block = self._random.random(256).tolist()
        return self._block.pop()

    def gap(self, hazard: float) -> int:
        """Draw the number of updates before one that overflows."""
        # Without a hazard, the logarithm below is 0. No run has enough updates for one that small.
        if hazard < 1e-12:
            return FOREVER
        if hazard >= 1.0:
            return 0
        return min(int(math.log1p(-self.next()) / math.log1p(-hazard)), FOREVER)
