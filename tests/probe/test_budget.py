"""The probe samples within its budget, after every change of scale, and never too rarely."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon.config import EVERY_MAX
from ampmon.probe.budget import Budget


def run(
    budget: Budget,
    updates: Iterable[int],
    *,
    cost: Callable[[int], float],
    pace: Callable[[int], float],
    bare: float = 0.0,
    beside: float = 0.0,
    changes: Container[int] = (),
) -> list[int]:
    """Return the sampled ordinals. A sample costs ``cost`` us, another update ``bare``; training takes ``pace``."""
    sampled = []
    for ordinal in updates:
        due = budget.due(ordinal)
        spent = cost(ordinal) if due else bare
        duration = pace(ordinal) + spent + beside
        budget.updated(duration if ordinal else None, spent, sampled=due, beside=beside)
        if due:
            sampled.append(ordinal)
        if ordinal in changes:
            budget.scale_changed()
    return sampled


def settled(cost: float, pace: float, share: float = 0.01, **others: float) -> Budget:
    """Return a budget after 600 equal updates."""
    budget = Budget("auto", share)
    run(budget, range(600), cost=lambda _: cost, pace=lambda _: pace, **others)
    return budget


@given(
    cost=st.floats(1, 1e6),
    pace=st.floats(10, 1e7),
    share=st.floats(1e-4, 1),
    changes=st.frozensets(st.integers(0, 999)),
)
def test_samples_in_turn_stay_inside_the_budget(
    cost: float, pace: float, share: float, changes: frozenset[int]
) -> None:
    """Samples stay inside the share, or at the longest interval `exceeded` is set; each scale change has a sample."""
    budget = Budget("auto", share)
    sampled = run(budget, range(1000), cost=lambda _: cost, pace=lambda _: pace, changes=changes)
    assert {change + 1 for change in changes if change < 999} <= set(sampled)
    gaps = [after - before for before, after in pairwise(sampled)]
    assert max(gaps) <= EVERY_MAX
    if not changes:
        assert cost <= 1.001 * budget.every * share * pace or (
            budget.exceeded and budget.every == 128
        )


def test_a_fixed_spacing_is_kept_whatever_it_costs() -> None:
    """`every=5` samples each fifth update and the one after a change, whatever it costs; no budget is exceeded."""
    budget = Budget(5, 0.01)
    sampled = run(budget, range(20), cost=lambda _: 1e9, pace=lambda _: 1.0, changes={11})
    assert sampled == [0, 5, 10, 12, 15]
    assert (budget.every, budget.share, budget.exceeded) == (5, None, False)


def test_ranks_that_adapt_apart_still_meet() -> None:
    """A rank that samples more often samples every update that another rank samples."""
    quick, slow = settled(20.0, 1000.0), settled(39.0, 1000.0)
    assert quick.every < slow.every
    assert {n for n in range(512) if slow.due(n)} < {n for n in range(512) if quick.due(n)}


@pytest.mark.parametrize(("cost", "every"), [(9.0, 1), (11.0, 2), (100.0, 16), (1200.0, 128)])
def test_the_interval_is_the_least_power_of_two_that_fits(cost: float, every: int) -> None:
    """With 1 % of 1 ms, a sample of 9 us is taken at every update and one of 100 us at every sixteenth."""
    budget = settled(cost, 1000.0)
    assert (budget.every, budget.exceeded) == (every, False)


def test_what_other_updates_cost_leaves_less_room() -> None:
    """In a budget of 10 us an update, a constant 6 us leaves 4 us for samples; a constant 12 us exceeds it."""
    assert settled(36.0, 1000.0).every == 4
    assert settled(36.0, 1000.0, bare=6.0).every == 8
    assert settled(30.0, 1000.0, beside=6.0).every == 8
    beyond = settled(36.0, 1000.0, bare=12.0)
    assert (beyond.every, beyond.exceeded) == (128, True)


@pytest.mark.parametrize(("cost", "exceeded"), [(1200.0, False), (1400.0, True), (1e6, True)])
def test_a_budget_that_cannot_be_kept_is_reported(cost: float, exceeded: bool) -> None:
    """`exceeded` is set if even one sample in 128 updates costs more than the share."""
    assert settled(cost, 1000.0).exceeded is exceeded


def test_a_scale_that_moves_at_every_update_is_reported() -> None:
    """If the scale moves at every update, each is sampled and `exceeded` is set; both end with the moves."""
    budget = Budget("auto", 0.01)
    every = range(300)
    assert run(budget, every, cost=lambda _: 50.0, pace=lambda _: 1000.0, changes=every) == list(
        every
    )
    assert budget.exceeded
    run(budget, range(300, 1000), cost=lambda _: 50.0, pace=lambda _: 1000.0)
    assert (budget.every, budget.exceeded) == (8, False)


def test_a_first_sample_that_is_slow_is_forgotten() -> None:
    """A first sample of 3 s, as for compiling kernels, is forgotten: 10 updates later the interval is 1."""
    budget = Budget("auto", 0.01)
    run(
        budget,
        range(10),
        cost=lambda n: 3e6 if n == 0 else 500.0,
        pace=lambda n: 2e6 if n == 1 else 1e5,
    )
    assert budget.every == 1


def test_a_slow_sample_among_many_changes_little() -> None:
    """One sample that takes 100 times as long stretches the interval to at most 4, and not for long."""
    budget = Budget("auto", 0.01)
    longest = 0
    for n in range(400):
        run(budget, [n], cost=lambda n: 50_000.0 if n == 64 else 500.0, pace=lambda _: 100_000.0)
        longest = max(longest, budget.every)
    assert longest <= 4
    assert budget.every == 1


def test_a_pause_does_not_license_samples() -> None:
    """A minute's pause between updates of 1 ms leaves the interval unchanged."""
    budget = settled(39.0, 1000.0)
    before = budget.every
    run(
        budget,
        range(600, 700),
        cost=lambda _: 39.0,
        pace=lambda n: 6e7 if n == 640 else 1000.0,
    )
    assert budget.every == before == 4


def test_the_interval_follows_a_lasting_change() -> None:
    """The interval follows when training becomes ten times slower or samples ten times cheaper."""
    budget = settled(310.0, 1000.0)
    assert budget.every == 32
    run(budget, range(600, 1200), cost=lambda _: 310.0, pace=lambda _: 10_000.0)
    assert budget.every == 4
    run(budget, range(1200, 1400), cost=lambda _: 31.0, pace=lambda _: 10_000.0)
    assert budget.every == 1


def test_a_cost_at_the_edge_does_not_flicker() -> None:
    """A sample cost that wavers around the limit settles on one interval."""
    budget = settled(39.0, 1000.0)
    seen = set()
    for n in range(600, 1200):
        run(budget, [n], cost=lambda n: 41.0 if n % 16 else 39.0, pace=lambda _: 1000.0)
        seen.add(budget.every)
    assert len(seen) <= 2
    assert budget.every == 8


def test_the_devices_time_counts() -> None:
    """A sample's time on the device, known later, adds to its time on the training thread."""
    budget = settled(9.0, 1000.0)
    for n in range(600, 700):
        if budget.due(n):
            budget.device(30.0, sampled=True)
        run(budget, [n], cost=lambda _: 9.0, pace=lambda _: 1000.0)
    assert budget.every == 4


def test_an_update_is_spared_only_where_all_are_sampled() -> None:
    """`spare` leaves out one update where all are sampled, but none after a change or with a fixed spacing."""
    budget = Budget("auto", 0.5)
    assert budget.due(0, spare=True)  # a scale not seen before counts as changed
    budget.updated(None, 1.0, sampled=True)
    assert not budget.due(1, spare=True)
    assert budget.due(2)
    budget.updated(1000.0, 1.0, sampled=True)
    budget.scale_changed()
    assert budget.due(3, spare=True)
    fixed = Budget(1, 0.5)
    run(fixed, range(3), cost=lambda _: 1.0, pace=lambda _: 1.0)
    assert fixed.due(3, spare=True)


def test_a_change_during_a_sample_is_not_forgotten() -> None:
    """A change reported between the decision to sample and the end of that update gets its own sample."""
    budget = Budget(128, 0.01)
    assert budget.due(0)
    budget.scale_changed()
    budget.updated(None, 1.0, sampled=True)
    assert budget.due(1)
    budget.updated(1.0, 1.0, sampled=True)
    assert not budget.due(2)
