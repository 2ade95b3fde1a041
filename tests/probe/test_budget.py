"""When the probe samples: inside its budget, always after a change of scale, never too rarely."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon.config import EVERY_MAX
from ampmon.probe.budget import Budget


def run(
    budget: Budget,
    updates: int,
    *,
    cost: float,
    period: float,
    changes: frozenset[int] = frozenset(),
) -> list[int]:
    """The ordinals sampled in a run whose every sample costs ``cost`` us and every update takes ``period`` us."""
    sampled = []
    for ordinal in range(updates):
        due = budget.due(ordinal)
        budget.period(period if ordinal else None)
        if due:
            sampled.append(ordinal)
            budget.sampled(cost)
        if ordinal in changes:
            budget.scale_changed()
    return sampled


@given(
    cost=st.floats(1, 1e6),
    period=st.floats(10, 1e7),
    share=st.floats(1e-4, 1),
    changes=st.frozensets(st.integers(0, 999)),
)
def test_samples_stay_inside_the_budget(
    cost: float, period: float, share: float, changes: frozenset[int]
) -> None:
    """Scheduled samples cost no more than the share, save for one in 200 updates; one follows each change of scale."""
    budget = Budget("auto", share)
    sampled = set(run(budget, 1000, cost=cost, period=period, changes=changes))
    assert all(change + 1 in sampled for change in changes if change < 999)
    scheduled = sampled - {change + 1 for change in changes} - {0, 1}
    assert len(scheduled) * cost <= share * 1000 * period + cost or budget.exceeded
    gaps = [
        after - before for before, after in zip(sorted(sampled), sorted(sampled)[1:], strict=False)
    ]
    assert max(gaps, default=0) <= EVERY_MAX


def test_a_fixed_spacing_is_kept_whatever_it_costs() -> None:
    """`every=5` samples each fifth update, and the one after a change."""
    assert run(Budget(5, 0.01), 20, cost=1e9, period=1.0, changes=frozenset({11})) == [
        0,
        5,
        10,
        12,
        15,
    ]


def test_ranks_that_adapt_apart_still_meet() -> None:
    """A rank that samples twice as often as another has a sample wherever the other has one."""
    quick = run(Budget("auto", 0.01), 512, cost=100.0, period=1000.0)
    slow = run(Budget("auto", 0.01), 512, cost=390.0, period=1000.0)
    assert set(slow) < set(quick)


@pytest.mark.parametrize(("cost", "exceeded"), [(10.0, False), (1e6, True)])
def test_a_budget_that_cannot_be_kept_is_told(cost: float, exceeded: bool) -> None:
    """Where even the rarest samples cost more than the share, `exceeded` says so."""
    budget = Budget("auto", 0.01)
    run(budget, 300, cost=cost, period=1000.0)
    assert budget.exceeded is exceeded
