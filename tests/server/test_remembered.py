"""What ingest remembers between batches: the most recent runs, within a limit, and nothing rolled back."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import msgspec
import numpy as np
import pytest
from sqlalchemy import Connection

from ampmon import wire
from ampmon_server.store import ANYONE, BadBatch, Receipt, Store, UnknownHeader
from ampmon_server.store.ingest import ingest
from ampmon_server.store.ingest import ingest as ingesting
from ampmon_server.store.ingest.ingest import WEIGHT_MAX, Memory
from ampmon_server.store.ingest.roster import Remembered
from ampmon_server.store.pages.pages import NewestPage
from ampmon_server.store.streams.scalers import StreamSource
from ampmon_server.store.updates import scalars
from batches import Trainer
from statements import logged


def of_streams(count: int, version: int = 7) -> Remembered:
    made = Remembered(version)
    for number in range(count):
        made.streams[0, str(number)] = StreamSource(
            b"", number, 0, str(number), "replicated", 0, 0, None, None
        )
    return made


def known(memory: Memory, run_id: UUID) -> int:
    """The version at which a run is remembered, or -1."""
    found = memory.take(run_id)
    memory.put(run_id, found)
    return found.version


def test_the_runs_heard_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit the run heard longest ago is forgotten; a run too large for it is not kept."""
    monkeypatch.setattr(ingest, "WEIGHT_MAX", 8)
    memory, ids = Memory(), [uuid4() for _ in range(4)]
    for run_id in ids:
        memory.put(run_id, of_streams(2))
    assert [known(memory, run_id) for run_id in ids] == [-1, -1, 7, 7]
    memory.put(ids[0], of_streams(8))
    assert [known(memory, run_id) for run_id in ids] == [-1] * 4


def test_runs_that_never_say_more_than_that_they_begin_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs without a stream and repeated attempts count towards the limit too."""
    monkeypatch.setattr(ingest, "WEIGHT_MAX", 10)
    memory, ids = Memory(), [uuid4() for _ in range(30)]
    for run_id in ids:
        memory.put(run_id, Remembered(7))
    restarted = of_streams(1)
    restarted.newest = {(0, attempt): ((0, 9), None) for attempt in range(20)}
    memory.put(ids[-1], restarted)
    assert [known(memory, run_id) for run_id in ids] == [-1] * 30


def test_a_batch_that_is_refused_leaves_nothing_remembered(store: Store) -> None:
    """A refused batch leaves nothing remembered, so the next batch is stored and counted correctly."""
    trainer = Trainer()
    store.ingest(trainer.batch(trainer.updates(5)))
    good = trainer.updates(5)
    nobody = wire.OptimizerStep(
        optimizer="Adam", path="plain", skipped=True, culprits=(wire.Culprit(99, 1, 0),)
    )
    bad = msgspec.structs.replace(good[-1], optimizers=(nobody,))
    with pytest.raises(BadBatch):
        store.ingest(trainer.batch([*good[:-1], bad], headers=()))
    store.ingest(trainer.batch(good, headers=()))
    summary, _ = store.run(trainer.run_id)
    assert (summary.updates, summary.records, summary.lost_records) == (10, 10, 0)


def updates_and_losses(trainer: Trainer, count: int) -> wire.Batch:
    losses = [(trainer.update(), trainer.scalars({"loss": 1.0})) for _ in range(count)]
    return trainer.batch([record for each in losses for record in each])


@pytest.mark.engines
def test_a_page_that_another_server_wrote_is_not_written_over(store: Store) -> None:
    """Two servers that take turns with a run lose no row, though each remembers an older newest page."""
    trainer, memories = Trainer(), (Memory(), Memory())
    for memory in (*memories, *memories):
        asked = [(updates_and_losses(trainer, 5), ANYONE)]
        ingesting.ingest_together(store._engine, memory, asked)
    columns, *_ = store.updates(trainer.run_id, stream=None, start=0, stop=99, limit=99)
    values = store.scalars(trainer.run_id, "loss", stream=None, start=0, stop=99, limit=99)
    assert columns["step"] == values.step == list(range(20))


def test_the_newest_pages_are_not_read_again(store: Store) -> None:
    """Batches that end in the newest pages read each of those pages once, not for every batch."""
    trainer = Trainer()
    read = 0
    for _ in range(3):
        with logged() as executed:
            store.ingest(updates_and_losses(trainer, 5))
        read += sum("SELECT" in each.text and "_pages.data" in each.text for each in executed)
    assert read == 2


def test_a_run_with_very_many_names_keeps_what_else_is_remembered_of_it(store: Store) -> None:
    """A run beyond the limit forgets its newest pages first, and keeps its version and streams."""
    memory, remembered = Memory(), of_streams(1)
    rows = np.zeros(256, scalars.PAGES.dtype)
    remembered.tails = {
        (b"run", 0, str(name)): NewestPage(0, rows) for name in range(WEIGHT_MAX // 2)
    }
    memory.put(run_id := uuid4(), remembered)
    found = memory.take(run_id)
    assert (found.version, len(found.streams), len(found.tails)) == (7, 1, 0)


def test_batches_stored_together_have_outcomes_of_their_own(store: Store) -> None:
    """In one transaction a refused batch leaves nothing, and its run's batches before and after it are stored."""
    trainer, other, unknown = Trainer(), Trainer(), Trainer()
    nobody = wire.OptimizerStep(
        optimizer="Adam", path="plain", skipped=True, culprits=(wire.Culprit(99, 1, 0),)
    )
    first, bad, last = (trainer.updates(5) for _ in range(3))
    bad[-1] = msgspec.structs.replace(bad[-1], optimizers=(nobody,))
    batches = [
        trainer.batch(first),
        other.batch(other.updates(3)),
        trainer.batch(bad, headers=()),
        unknown.batch(unknown.updates(1), headers=()),
        trainer.batch(last, headers=()),
        trainer.batch(first),
    ]
    outcomes = store.ingest_together([(batch, ANYONE) for batch in batches])
    results = [getattr(each, "changed", type(each)) for each in outcomes]
    summary, _ = store.run(trainer.run_id)

    assert results == [True, True, BadBatch, UnknownHeader, True, False]
    assert (summary.updates, summary.records, summary.lost_records) == (10, 10, 5)
    assert store.run(other.run_id)[0].updates == 3


def test_a_batch_that_breaks_the_transaction_breaks_it_for_itself(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fails unexpectedly fails alone: the others of its transaction are stored."""
    trainers = [Trainer() for _ in range(3)]
    ingest = ingesting.ingest

    def breaking(connection: Connection, batch: wire.Batch, *more: Any) -> Receipt:
        receipt = ingest(connection, batch, *more)
        if batch.run_id == trainers[1].run_id:
            raise ZeroDivisionError
        return receipt

    monkeypatch.setattr(ingesting, "ingest", breaking)
    asked = [(each.batch(each.updates(2)), ANYONE) for each in trainers]
    outcomes = store.ingest_together(asked)

    assert [type(each) for each in outcomes] == [Receipt, ZeroDivisionError, Receipt]
    assert {each[0] for each in store.versions()} == {trainers[0].run_id, trainers[2].run_id}
