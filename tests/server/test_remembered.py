"""What ingest remembers between batches: the runs heard last, bounded, and nothing of what was rolled back."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import pytest

from ampmon import wire
from ampmon_server.store import BadBatch, Store, remembered
from ampmon_server.store.remembered import Memory, Remembered
from ampmon_server.store.streams import Stream
from batches import Trainer


def of_streams(count: int) -> Remembered:
    made = Remembered()
    for number in range(count):
        made.streams[0, str(number)] = Stream(
            number, 0, str(number), "replicated", 0, 0, None, None
        )
    return made


def known(memory: Memory, run_id: UUID) -> int:
    """The version at which a run is remembered; -1 where it is not."""
    found = memory.take(run_id)
    memory.put(run_id, found, found.version)
    return found.version


def test_the_runs_heard_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many streams the run that was heard the longest ago is forgotten, and one that has more at once."""
    monkeypatch.setattr(remembered, "STREAMS_MAX", 5)
    memory, ids = Memory(), [uuid4() for _ in range(4)]
    for run_id in ids:
        memory.put(run_id, of_streams(2), 7)
    assert [known(memory, run_id) for run_id in ids] == [-1, -1, 7, 7]
    memory.put(ids[0], of_streams(6), 8)
    assert [known(memory, run_id) for run_id in ids] == [-1] * 4


def test_an_older_version_does_not_come_back() -> None:
    """Of two that put a run back the later version stays, whoever comes last."""
    memory, run_id = Memory(), uuid4()
    for version in (4, 3):
        memory.put(run_id, of_streams(1), version)
    assert known(memory, run_id) == 4


def test_a_batch_that_is_refused_leaves_nothing_remembered(store: Store) -> None:
    """What a refused batch would have changed is read anew, so that the batches after it are stored and counted."""
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
