"""A thousand senders and one server: the requests per second while it is away, busy and back."""

from __future__ import annotations

import heapq
import random

import pytest

from ampmon.sender.backoff import Backoff
from doubles import ManualClock


SENDERS = 1000
AWAY_S = 600.0
BATCHES = 5
"""Batches that each sender has to send once the server is back."""
RETRY_AFTER_S = 1.0


def requests(away_s: float, per_s: float) -> list[float]:
    """The times of requests to a server that is away until ``away_s``, then takes ``per_s`` batches a second."""
    random.seed(5)
    clock = ManualClock(0.0)
    senders = [Backoff(clock) for _ in range(SENDERS)]
    left = [BATCHES] * SENDERS
    due = [(random.uniform(0, 1), number) for number in range(SENDERS)]
    heapq.heapify(due)
    made: list[float] = []
    taken: dict[int, int] = {}
    while due:
        clock.now_s, number = heapq.heappop(due)
        made.append(clock.now_s)
        slot = int(clock.now_s * 10)
        if clock.now_s < away_s:
            senders[number].failed()
        elif taken.get(slot, 0) >= per_s / 10:
            senders[number].failed(RETRY_AFTER_S)
        else:
            taken[slot] = taken.get(slot, 0) + 1
            senders[number].succeeded()
            left[number] -= 1
        if left[number]:
            wait_s = max(senders[number].remaining_s(), 0.05)
            heapq.heappush(due, (clock.now_s + wait_s, number))
    return made


def most_in_a_second(made: list[float], start_s: float, stop_s: float = float("inf")) -> int:
    """The most requests in any second between ``start_s`` and ``stop_s``."""
    times = [at for at in made if start_s <= at < stop_s]
    first = most = 0
    for last, at in enumerate(times):
        while times[first] <= at - 1:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.mark.parametrize("per_s", [50, 1000])
def test_a_server_that_returns_is_not_run_over(per_s: int) -> None:
    """A thousand senders make at most 90 requests a second while the server is away, and 350 when it is back."""
    made = requests(AWAY_S, per_s)
    assert most_in_a_second(made, 60, AWAY_S) <= 90
    assert most_in_a_second(made, AWAY_S) <= 350
    assert made[-1] - AWAY_S <= max(45, 1.6 * SENDERS * BATCHES / per_s)


def test_a_busy_server_is_soon_asked_no_more_than_it_can_take() -> None:
    """A thousand senders rejected by a busy server make at most 450 requests a second afterwards."""
    made = requests(0.0, 50)
    assert most_in_a_second(made, 1.2) <= 450
    assert made[-1] <= 1.5 * SENDERS * BATCHES / 50
