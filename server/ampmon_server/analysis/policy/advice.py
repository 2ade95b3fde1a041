"""Describes what a replay shows of a setting, and finds the best of a few settings of torch's scaler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ampmon_server.analysis.policy.history import History, scale_of
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.analysis.policy.scalers import Setting, changed, recorded
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.analysis.policy.simulation import Recommended, Simulation, sentence


INTERVALS = (100, 200, 500, 1000, 2000, 5000)

REPLAYS = 4
"""Replays of each kind for each setting of the grid. Few, because the grid is large and only one setting is shown."""

SUBNORMAL_WEIGHT = 0.1
"""Cost of a subnormal element relative to a lost one: it keeps some of its bits."""

GAIN_LEAST = 0.002
"""The least gain, as a share of the computation, that is worth a change."""

CALM = 500
"""A scale at which at most one update in this many overflows is a good initial scale."""


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
    tried = [simulator.run(setting, REPLAYS) for setting in _grid(simulator.history)]
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
