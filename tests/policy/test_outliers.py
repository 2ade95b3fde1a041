"""Replays of runs in which some batches overflow at every scale above a low one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.risks import Outliers
from ampmon_server.analysis.policy.scalers import Setting
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.analysis.policy.simulation import Skips
from made_cases import skip
from policy.made import history
from policy.made import recorded as record


NEVER = 10**9


def _every(period: int, low: float, high: float) -> Callable[[int, float], bool]:
    """Overflow from 2**low in the last update of each period, from 2**high in the others."""
    return lambda update, scale: scale >= 2.0 ** (low if update % period == period - 1 else high)


def _at(run: History, level: int) -> Skips:
    return Simulator(run).run(Setting("fixed", 2.0**level)).skips


def test_only_overflows_without_a_growth_are_steady() -> None:
    """Overflows of the warm-up or after a growth are not steady; those of outliers are."""
    usual = history(record(1000, lambda update, scale: scale >= 2.0**12, growth_interval=50))
    assert usual.skips > 10
    assert not Outliers(usual).steady.any()
    run = history(record(1000, _every(90, 6, 30), growth_interval=50), growth_interval=50)
    assert Outliers(run).steady[run.skipped].all()


def test_a_scale_that_no_outlier_met_is_inconclusive() -> None:
    """At a scale that no outlier was tested at, a replay is inconclusive."""
    run = history(record(1000, _every(90, 6, 30), growth_interval=50), growth_interval=50)
    assert (run.level[run.skipped] == 17).all()
    skips = _at(run, 9)
    assert not skips.known
    assert (skips.low, skips.high) == (0, 11)


def test_a_scale_that_let_many_outliers_through_is_an_answer() -> None:
    """A scale that let many outliers through has no skips in a replay. At a higher one the true number is in range."""
    run = history(record(3000, _every(90, 11.5, 30), growth_interval=NEVER), growth_interval=NEVER)
    assert run.skips == 5
    low, high = _at(run, 10), _at(run, 13)
    assert (low.known, low.low) == (True, 0)
    assert high.low <= 33 <= high.high


def test_bands_hold_what_random_outliers_do() -> None:
    """For random outliers, at least 11 of 12 replays of other policies have the true number of skips in their range."""
    inside = [
        _is_inside(world, *to) for world in range(4) for to in ((16, 400), (10, NEVER), (6, NEVER))
    ]
    assert sum(inside) >= 11


def _is_inside(world: int, init: int, interval: int) -> bool:
    random = np.random.default_rng(world)
    ceilings = random.normal(16, 0.3, 1000)
    outliers = random.random(1000) < random.uniform(0.005, 0.03)
    ceilings -= outliers * (random.uniform(3, 10) + random.exponential(size=1000))

    def overflows(update: int, scale: float) -> bool:
        return bool(scale >= 2.0 ** ceilings[update])

    run = history(record(1000, overflows, growth_interval=50), growth_interval=50)
    setting = Setting("torch", 2.0**init, 2.0, 0.5, interval)
    skips = Simulator(run).run(setting, replays=8).skips
    updates = record(1000, overflows, init_scale=2.0**init, growth_interval=interval)
    return skips.low <= sum(skipped for _, skipped in updates) <= skips.high


@pytest.mark.parametrize(
    ("cause", "loss", "beyond"),
    [
        ("nan", None, True),
        ("nan", "finite", False),
        ("inf", None, False),
        ("inf", "not_finite", True),
    ],
)
def test_the_loss_decides_what_no_scale_prevents(
    cause: str, loss: str | None, beyond: bool
) -> None:
    """The loss decides whether a smaller scale could have prevented a skip; if it is unknown, NaN without inf does."""
    assert skip(1, cause=cause, loss=loss).beyond_scale is beyond
