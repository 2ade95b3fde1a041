"""The best of a few settings of torch's scaler for a run, what it gains, and how to write it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ampmon_server.policy.history import History
from ampmon_server.policy.languages import in_settings_of
from ampmon_server.policy.settings import Setting, recorded
from ampmon_server.policy.simulate import Simulation, Simulator
from ampmon_server.words import in_code, percent, plural


INTERVALS = (100, 200, 500, 1000, 2000, 5000)

REPLAYS = 4
"""Of each kind, of each setting of the grid: it is many settings, and only one of them is told."""

SUBNORMAL_WEIGHT = 0.1
"""A subnormal element keeps some of its bits: ten of them count as one that is lost."""

GAIN_LEAST = 0.002
"""Of the updates' worth: less is not worth a change."""


CALM = 500
"""A scale at which fewer than one update in so many overflows is worth beginning with."""


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
        return Advice(was.setting, "No tested setting is clearly better.", "", was)
    code = in_settings_of(simulator.history.policy, best.setting.code(simulator.history.policy))
    return Advice(best.setting, _words(best, was), code, best)


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
    """The largest scales at which at most one update in `CALM`, and at which none, is known to have overflowed."""
    levels, place = np.unique(history.level, return_inverse=True)
    skipped = np.bincount(place, weights=history.skipped)
    through = np.bincount(place, weights=history.length - history.skipped)
    # What overflowed at a scale does so at every larger one, and what went through does at every smaller one.
    overflowed, held = np.cumsum(skipped), np.cumsum(through[::-1])[::-1]
    for most in (1 / CALM, 0.0):
        calm = levels[(overflowed <= most * (overflowed + held)) & (held > 0)]
        yield from (float(2.0**level) for level in calm[-1:])


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
    gains = [f"{plural(round(best.skips.expected), 'skip')} instead of {was.skips.expected:.0f}"]
    if best.lost is not None and was.lost is not None:
        now, before = best.lost.subnormal.expected, was.lost.subnormal.expected
        gains.append(f"{percent(now)} subnormal instead of {percent(before)}")
    return f"{', '.join(names)}: {', '.join(gains)}."
