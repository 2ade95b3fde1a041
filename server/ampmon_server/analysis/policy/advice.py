"""Describes what a replay shows of a setting, and finds the best of a few settings of torch's scaler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.analysis.policy.scalers import Setting, changed, recorded
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.analysis.policy.simulation import Recommended, Simulation
from ampmon_server.model.words import count, percent, plural


INTERVALS = (100, 200, 500, 1000, 2000, 5000)

REPLAYS = 4
"""Replays of each kind for each setting of the grid. Few, because the grid is large and only one setting is shown."""

SUBNORMAL_WEIGHT = 0.1
"""Cost of a subnormal element relative to a lost one: it keeps some of its bits."""

GAIN_LEAST = 0.002
"""The least gain, as a share of the computation, that is worth a change."""


LESS = 0.9
"""A setting that leaves at least this part of the skips, zeros and subnormal elements gains hardly anything."""

CALM = 500
"""A scale at which at most one update in this many overflows is a good initial scale."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The best ``setting``, or the run's own if none gains. ``words`` describe the gain, and ``code`` applies it.

    ``second`` says why it is only an alternative. It is empty for what the run's findings recommend.
    """

    setting: Setting
    words: str
    code: str
    simulation: Simulation
    second: str = ""


def advise(simulator: Simulator, recommended: Recommended) -> Advice:
    """Return the setting that the findings recommend, else the best of a small grid around the run's own."""
    was, policy = simulator.recorded(), simulator.history.policy
    if recommended.setting:
        setting = changed("torch", policy, **recommended.setting)
        simulation = simulator.run(setting)
        return Advice(setting, sentence(was, simulation), recommended.code, simulation)
    tried = [simulator.run(setting, REPLAYS) for setting in _grid(simulator.history)]
    best = simulator.run(min(filter(_is_sure, tried), key=_cost, default=was).setting)
    if not _is_sure(best) or _cost(was) - _cost(best) < GAIN_LEAST:
        return Advice(was.setting, "No tested setting is clearly better.", "", was)
    code = in_settings_of(policy, best.setting.code(policy))
    return Advice(best.setting, sentence(was, best), code, best, recommended.standing(same=False))


def has_no_gain(was: Simulation, would: Simulation) -> bool:
    """Whether a setting hardly reduces any of: skips, subnormal elements, zeros."""
    before, after = [was.skips.expected], [would.skips.expected]
    if was.lost is not None and would.lost is not None:
        before += [was.lost.subnormal.expected, was.lost.zero.expected]
        after += [would.lost.subnormal.expected, would.lost.zero.expected]
    return all(now >= LESS * then for then, now in zip(before, after, strict=True))


def sentence(was: Simulation, would: Simulation) -> str:
    """Compare a simulation with the recorded run. A wide band is conclusive if the recorded skips are outside it."""
    if would.ended is not None:
        return f"Training would have ended: {would.ended}."
    if was.setting == would.setting:
        return f"{plural(was.skips.low, 'skip')} in {plural(was.updates, 'step')}, as recorded; {_lost(was)}."
    skips, recorded = would.skips, was.skips.low
    lost = "" if was.lost is None else f"; {_lost(would)}"
    if lost and _lost(would) != _lost(was):
        lost += f" instead of {_lost(was)}"
    instead = f"{count(skips.low)} to {count(skips.high)} skips instead of {count(recorded)}{lost}."
    if skips.known:
        expected = round(skips.expected)
        about = f"About {plural(expected, 'skip')}" if expected else "Few or no skips"
        band = f"({count(skips.low)} to {count(skips.high)})"
        return f"{about} {band} instead of {count(recorded)}{lost}."
    if skips.low <= recorded <= skips.high:
        return f"Inconclusive, because there is too little data at these scales: {instead}"
    return instead


def _lost(of: Simulation) -> str:
    if of.lost is None:
        return "shares of the gradient unknown"
    return f"{percent(of.lost.subnormal.expected)} subnormal, {percent(of.lost.zero.expected)} zero"


def _is_sure(simulation: Simulation) -> bool:
    return simulation.skips.known and simulation.ended is None


def _grid(history: History) -> list[Setting]:
    own = recorded(history.policy)
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
        yield from (float(2.0**level) for level in calm[-1:])


def _cost(simulation: Simulation) -> float:
    """The share of the computation that is lost: skipped updates, zeros, and part of the subnormal elements."""
    skipped = simulation.skips.expected / simulation.updates
    if simulation.lost is None:
        return skipped
    lost = simulation.lost
    return skipped + lost.zero.expected + SUBNORMAL_WEIGHT * lost.subnormal.expected
