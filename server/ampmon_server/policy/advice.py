"""The best of a few settings of torch's scaler for a run, what it gains, and how to write it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ampmon_server.policy.history import History
from ampmon_server.policy.settings import Setting, recorded
from ampmon_server.policy.simulate import Simulation, Simulator
from ampmon_server.words import in_code


INTERVALS = (100, 200, 500, 1000, 2000, 5000)

REPLAYS = 4
"""Of each kind, of each setting of the grid: it is many settings, and only one of them is told."""

SUBNORMAL_WEIGHT = 0.1
"""A subnormal element keeps some of its bits: ten of them count as one that is lost."""

GAIN_LEAST = 0.002
"""Of the updates' worth: less is not worth a change."""

CALM = 32
"""So many updates at a scale without a skip end the search for one that fits."""


@dataclass(frozen=True, slots=True)
class Advice:
    """``setting`` is the run's own where nothing gains; ``words`` say what is gained, ``code`` how to write it."""

    setting: Setting
    words: str
    code: str
    simulation: Simulation


def advise(simulator: Simulator) -> Advice:
    """Tries a small grid around the run's own setting, and takes the one that loses the least."""
    was = simulator.recorded()
    tried = [simulator.run(setting, REPLAYS) for setting in _grid(simulator.history)]
    sure = [each for each in tried if each.skips.known and each.ended is None]
    best = min(sure, key=_cost, default=was)
    if _cost(was) - _cost(best) < GAIN_LEAST:
        return Advice(was.setting, "Keep what you have: nothing tried gains.", "", was)
    return Advice(best.setting, _words(best, was), best.setting.code(), best)


def _grid(history: History) -> list[Setting]:
    own = recorded(history.policy)
    scales = {own.init_scale, _calm_scale(history)} if history.is_whole else {own.init_scale}
    intervals = {own.growth_interval, *INTERVALS}
    return [
        replace(own, init_scale=scale, growth_interval=interval)
        for scale in sorted(scales)
        for interval in sorted(each for each in intervals if each is not None)
    ]


def _calm_scale(history: History) -> float:
    """The scale at which a run's search for one that fits ended."""
    calm = (history.length - history.skipped) >= CALM
    return float(2.0 ** history.level[int(calm.argmax())])


def _cost(simulation: Simulation) -> float:
    """Of what was computed, the share that is lost: skipped updates, zeros, and part of what is subnormal."""
    skipped = simulation.skips.expected / simulation.updates
    if simulation.lost is None:
        return skipped
    lost = simulation.lost
    return skipped + lost.zero.expected + SUBNORMAL_WEIGHT * lost.subnormal.expected


def _words(best: Simulation, was: Simulation) -> str:
    names = [
        f"{name}={in_code(getattr(best.setting, name))}"
        for name in ("init_scale", "growth_interval")
        if getattr(best.setting, name) != getattr(was.setting, name)
    ]
    gains = [f"{best.skips.expected:.0f} skips instead of {was.skips.expected:.0f}"]
    if best.lost is not None and was.lost is not None:
        now, before = best.lost.subnormal.expected, was.lost.subnormal.expected
        gains.append(f"{now:.2%} subnormal instead of {before:.2%}")
    return f"{', '.join(names)}: {', '.join(gains)}."
