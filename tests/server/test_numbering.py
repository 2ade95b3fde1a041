"""Attempt numbers: start time and world size, not a count per rank, decide which start a process belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from ampmon import wire
from ampmon_server.store import Store
from batches import START, Trainer, now, statistics


SECOND_US = 1_000_000
ORDERS = pytest.mark.parametrize("backwards", [False, True])


def begin(
    store: Store, run_id: UUID, ranks: Sequence[int], *, size: int, after_s: int, count: int = 10
) -> list[Trainer]:
    """Start processes from ``after_s`` seconds after the run's first, one second apart, and send their updates."""
    trainers = [
        Trainer(
            run_id,
            rank,
            layout="sharded",
            world_size=size,
            started=START + (after_s + index) * SECOND_US,
        )
        for index, rank in enumerate(ranks)
    ]
    for trainer in trainers:
        store.ingest(trainer.batch())
    for trainer in trainers:
        sample = statistics(seed=1).to_wire()
        store.ingest(trainer.batch([trainer.update(gradients=sample) for _ in range(count)]))
    return trainers


def crash(store: Store, trainers: Sequence[Trainer], *, after_s: int) -> None:
    """Send each trainer's last event, an exception, dated ``after_s`` seconds after the run began."""
    for trainer in trainers:
        last = wire.Event(
            stream="", seq=0, time=START + after_s * SECOND_US, kind="exception", detail={}
        )
        store.ingest(trainer.batch([last]))


def origins(store: Store, run_id: UUID) -> dict[int, list[tuple[int, int, bool]]]:
    """For each rank, the number and first step of its attempts, and whether that step is assumed."""
    found: dict[int, list[tuple[int, int, bool]]] = {}
    for each in store.run(run_id)[1].attempts:
        started = (each["attempt"], each["origin"], each["origin_assumed"])
        found.setdefault(each["rank"], []).append(started)
    return found


@ORDERS
def test_a_rank_that_left_no_record_of_a_start_is_part_of_the_next(
    store: Store, backwards: bool
) -> None:
    """A rank that missed a start joins the next at the others' step; steps with missing shards are left out."""
    run_id = uuid4()
    crash(store, begin(store, run_id, [0, 1], size=2, after_s=0), after_s=50)
    crash(store, begin(store, run_id, [0], size=2, after_s=60), after_s=80)
    both = [1, 0] if backwards else [0, 1]
    begin(store, run_id, both, size=2, after_s=90, count=5)

    assert origins(store, run_id) == {
        0: [(0, 0, False), (1, 10, True), (2, 20, True)],
        1: [(0, 0, False), (2, 20, True)],
    }
    whole = store.series(run_id).gradients["first"].tolist()
    assert whole == [*range(10), *range(20, 25)]


@ORDERS
def test_a_rank_that_joins_goes_on_with_the_others(store: Store, backwards: bool) -> None:
    """When a rank joins, all ranks of the new start continue after the last step, as the run's second attempt."""
    run_id = uuid4()
    for size, after_s in ((2, 0), (3, 60)):
        ranks = list(range(size))
        begin(store, run_id, ranks[::-1] if backwards else ranks, size=size, after_s=after_s)
    summary = store.run(run_id)[0]

    assert origins(store, run_id) == {
        0: [(0, 0, False), (1, 10, True)],
        1: [(0, 0, False), (1, 10, True)],
        2: [(1, 10, True)],
    }
    assert (summary.ranks, summary.attempts) == (3, 2)


@ORDERS
def test_a_rank_that_was_left_out_for_a_while_comes_back(store: Store, backwards: bool) -> None:
    """A rank left out of the second start rejoins in the third, though no start reported its end."""
    run_id = uuid4()
    for size, after_s in ((3, 0), (2, 10), (3, 20)):
        ranks = list(range(size))
        begin(store, run_id, ranks[::-1] if backwards else ranks, size=size, after_s=after_s)

    assert origins(store, run_id)[2] == [(0, 0, False), (2, 20, True)]


@pytest.mark.storage
def test_starts_that_arrive_a_rank_at_a_time_are_distinguished(store: Store) -> None:
    """Starts 20 s apart are distinguished by their times when one rank after another delivers its records."""
    run_id = uuid4()
    for rank, starts in ((0, (0, 20, 40)), (1, (0, 20, 40)), (2, (0, 40))):
        for after_s in starts:
            trainers = begin(store, run_id, [rank], size=3, after_s=after_s + 3 * rank)
            crash(store, trainers, after_s=after_s + 15)

    first, second, third = (0, 0, False), (1, 10, True), (2, 20, True)
    assert origins(store, run_id) == {
        0: [first, second, third],
        1: [first, second, third],
        2: [first, third],
    }


def test_a_crash_is_dated_by_the_clock_of_the_training(store: Store) -> None:
    """With trainer clocks a day ahead, a rank that reports after another crashed still joins the same start."""
    run_id, ahead = uuid4(), now() + 24 * 3600 * SECOND_US
    for rank in (0, 1):
        trainer = Trainer(run_id, rank, world_size=2, started=ahead + rank * SECOND_US)
        update = trainer.update(time=ahead + 5 * SECOND_US)
        store.ingest(trainer.batch([update], ended="crashed"))

    assert origins(store, run_id) == {0: [(0, 0, False)], 1: [(0, 0, False)]}
