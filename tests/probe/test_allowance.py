"""Optional work in an update takes no more than its share of the time."""

from __future__ import annotations

from ampmon.probe.budget import TimeAllowance


def test_work_takes_its_share_of_the_time() -> None:
    """Saved time is spent first; then, with a share of 0.01, work of 1 ms runs in a tenth of the updates of 10 ms."""
    now = 0
    allowance = TimeAllowance(0.01, clock=lambda: now)
    done = []
    for update in range(5000):
        now += 10_000_000
        if (began := allowance.begin()) is not None:
            now += 1_000_000
            allowance.end(began)
            done.append(update)
    assert done[:200] == [*range(200)]
    assert 380 < sum(update >= 1000 for update in done) < 420


def test_a_share_of_all_is_no_limit() -> None:
    """With a share of 1 work always runs, however long it takes."""
    now = 0
    allowance = TimeAllowance(1.0, clock=lambda: now)
    for _ in range(10):
        began = allowance.begin()
        assert began is not None
        now += 10**12
        allowance.end(began)


def test_a_pause_during_the_work_does_not_end_it() -> None:
    """Work of 0.1 ms that once took a second, with a share of 0.5, runs again a second later, and then each time."""
    now = 0
    allowance = TimeAllowance(0.5, clock=lambda: now)
    done = []
    for update in range(250):
        now += 10_000_000
        if (began := allowance.begin()) is not None:
            now += 1_000_000_000 if update == 5 else 100_000
            allowance.end(began)
            done.append(update)
    assert done == [*range(6), *range(105, 250)]
