"""Runs with very many streams or ranks: constant cost, and limits on their number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from sqlalchemy import select

from ampmon import wire
from ampmon_server.charts import FIGURES, View
from ampmon_server.http.decoding import decode_batch
from ampmon_server.queries.drawing import ChartRequest, draw
from ampmon_server.store import BadBatch, Store
from ampmon_server.store.admin import recorded
from ampmon_server.store.engine import engine as engines
from ampmon_server.store.pages.windows import WHOLE
from ampmon_server.store.schema.tables import runs
from ampmon_server.store.streams.scalers import scalers_of
from batches import Trainer
from statements import OF_RUNS, logged, statements


def headers(trainer: Trainer, count: int, *, first: int = 0) -> tuple[wire.Header, ...]:
    """The headers of an attempt and of ``count`` scalers."""
    streams = (
        wire.StreamHeader(stream=f"scaler {first + each}", scaler="GradScaler", device="cpu")
        for each in range(count)
    )
    return (trainer.attempt, *streams)


@pytest.mark.engines
def test_headers_of_a_batch_are_stored_at_once(store: Store) -> None:
    """Storing and reading a thousand headers takes as many statements as two."""
    taken, read = [], []
    for count in (2, 1000):
        trainer = Trainer()
        with statements(store._engine) as executed:
            store.ingest(trainer.batch(headers=headers(trainer, count)))
        taken.append(len(executed))
        with engines.reading(store._engine) as connection, statements(store._engine) as executed:
            assert len(scalers_of(connection, trainer.run_id.bytes)) == count
        read.append(len(executed))
        listed = [each["scaler"] for each in store.run(trainer.run_id)[0].streams]
        assert listed == [f"scaler {each}" for each in range(count)]
    assert taken[0] == taken[1]
    assert read == [1, 1]


def resumed(store: Store, ranks: int, starts: int) -> UUID:
    """A run whose ranks skip together. The first one samples, and the last one logs values, as of a pipeline."""
    run_id = uuid4()
    for start, rank in itertools.product(range(starts), range(ranks)):
        trainer = Trainer(run_id, rank, world_size=ranks, resume_step=3 * start, started=start)
        records = trainer.updates(5, skipped=[1], sampled=[] if rank else [2])
        logged = [trainer.scalars({"loss": 1.0})] if rank == ranks - 1 else []
        store.ingest(trainer.batch([*records, *logged]))
    return run_id


@pytest.mark.engines
def test_runs_without_activations_are_not_searched_for_them(store: Store) -> None:
    """Whether a run has activations takes as many statements after ten starts as after one."""
    taken = []
    for starts in (1, 10):
        run_id = uuid4()
        for start in range(starts):
            trainer = Trainer(run_id, resume_step=3 * start, started=start)
            header = msgspec.structs.replace(trainer.stream, modules=())
            store.ingest(trainer.batch(trainer.updates(5), headers=(trainer.attempt, header)))
        with statements(store._engine) as executed:
            assert store.activations(run_id) == (None, False)
        taken.append(len(executed))
    assert taken[0] == taken[1]


@pytest.mark.engines
def test_ranks_that_take_the_same_samples_read_one_other(store: Store) -> None:
    """A batch of the last of ten ranks that all sample takes as many statements as that of the last of three.

    A sample that only the last rank took is counted too.
    """
    taken = []
    for ranks in (3, 10):
        run_id = uuid4()
        trainers = [Trainer(run_id, rank, world_size=ranks) for rank in range(ranks)]
        for trainer in trainers:
            store.ingest(trainer.batch(trainer.updates(5, sampled=[2])))
        *others, last = trainers
        for trainer in others:
            store.ingest(trainer.batch(trainer.updates(300, sampled=[9, 299])))
        with statements(store._engine) as executed:
            store.ingest(last.batch(last.updates(300, sampled=[9, 299])))
        taken.append(len(executed))
        assert store.run(run_id)[0].sampled_updates == 3
        for trainer in trainers:
            store.ingest(trainer.batch(trainer.updates(300, sampled=[4] * (trainer is last))))
        assert store.run(run_id)[0].sampled_updates == 4
        drawn = store.series(run_id).updates
        assert (drawn["n"].sum(), drawn["sampled"].sum()) == (605, 4)
    assert taken[0] == taken[1]


@pytest.mark.engines
def test_sharded_ranks_that_begin_read_no_other(store: Store) -> None:
    """The first samples of the ninth of ten sharded ranks take as many statements as those of the third."""
    run_id, taken = uuid4(), []
    for rank in range(10):
        trainer = Trainer(run_id, rank, layout="sharded", world_size=10)
        with statements(store._engine) as executed:
            store.ingest(trainer.batch(trainer.updates(5, sampled=[2])))
        taken.append(len(executed))
    assert taken[2] == taken[8]
    assert store.run(run_id)[0].zero_fraction == pytest.approx(0.1)


READS: dict[str, Callable[[Store, UUID], object]] = {
    "updates": lambda store, run_id: store.updates(
        run_id, stream=None, start=0, stop=2**53, limit=100
    ),
    "charts": lambda store, run_id: store.series(run_id),
    "parameters": lambda store, run_id: store.parameter_series(run_id),
    "activations": lambda store, run_id: store.activations(run_id),
    "names": lambda store, run_id: store.scalar_names(run_id),
    "values": lambda store, run_id: store.scalar_series(run_id, "loss", WHOLE),
    "history": lambda store, run_id: store.history(run_id),
}


@pytest.mark.engines
def test_more_ranks_or_starts_take_no_more_statements(store: Store) -> None:
    """Each read of a run takes as many statements on ten ranks, or after ten starts, as on two ranks after two."""
    taken = []
    for ranks, starts in ((2, 2), (10, 2), (2, 10)):
        run_id = resumed(store, ranks, starts)
        counts = {}
        for name, read in READS.items():
            with statements(store._engine) as executed:
                read(store, run_id)
            counts[name] = len(executed)
        taken.append(counts)
    assert taken == [taken[0]] * 3


def test_charts_read_the_rows_of_their_run_by_key(store: Store) -> None:
    """On SQLite, no statement of a chart scans a table with the rows of all runs."""
    trainer = Trainer()
    store.ingest(trainer.batch([*trainer.updates(300, sampled=[0, 9]), trainer.scalars({"a": 1})]))
    with logged() as executed:
        for stream, name in itertools.product((None, 0), FIGURES):
            draw(store, trainer.run_id, name, ChartRequest(View(parameter="head.weight"), stream))
    with engines.reading(store._engine) as connection:
        for each in executed:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {each.text}", each.parameters)
            scanned = {row.detail.split()[1] for row in plan if row.detail.startswith("SCAN ")}
            assert not scanned & OF_RUNS, each.text


def test_the_rows_of_many_streams_are_counted_in_one_pass(store: Store) -> None:
    """Checking the totals of a run looks through its attempts once, and not again for each stream."""
    passes = []

    class Steps(dict[Any, Any]):
        def items(self) -> Any:
            passes.append(len(self))
            return super().items()

    trainer = Trainer()
    store.ingest(trainer.batch(headers=headers(trainer, 100)))
    with engines.reading(store._engine) as connection:
        run = connection.execute(select(runs)).one()
        rows = recorded.read_rows(connection, run.run_id)
        rows.steps = Steps(rows.steps)
        assert list(recorded.of_totals(connection, run, rows)) == []
    assert len(passes) == 1


def test_a_run_has_so_many_streams(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header beyond the limit of streams is rejected and not stored. Known headers are still accepted."""
    monkeypatch.setattr("ampmon_server.store.ingest.roster.STREAMS_MAX", 3)
    trainer = Trainer()
    store.ingest(trainer.batch(headers=headers(trainer, 3)))
    with pytest.raises(BadBatch, match="more than 3 streams"):
        store.ingest(trainer.batch(headers=headers(trainer, 1, first=3)))
    store.ingest(trainer.batch(headers=headers(trainer, 3)))
    assert len(store.run(trainer.run_id)[0].streams) == 3


def test_a_run_has_so_many_ranks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank beyond the limit is rejected. A new attempt of a known rank is accepted."""
    monkeypatch.setattr("ampmon_server.store.streams.attempts.RANKS_MAX", 2)
    first = Trainer()
    for rank in (0, 1, 1):
        store.ingest(Trainer(run_id=first.run_id, rank=rank).batch())
    with pytest.raises(BadBatch, match="more than 2 ranks"):
        store.ingest(Trainer(run_id=first.run_id, rank=2).batch())
    assert store.run(first.run_id)[0].ranks == 2


def test_a_batch_has_so_many_headers() -> None:
    """Decoding a batch with too many headers raises an error that names the field."""
    trainer = Trainer()
    body = wire.encode(trainer.batch(headers=headers(trainer, wire.HEADERS_MAX)))
    with pytest.raises(msgspec.ValidationError, match=r"<= 1024 - at `\$.headers`"):
        decode_batch(body)
