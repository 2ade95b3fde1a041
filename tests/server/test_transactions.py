"""Concurrent transactions of threads and of server processes, and a database that cannot be used now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Connection, Engine, make_url, select, text, update

from ampmon import wire
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Edit, Store, Verification
from ampmon_server.store.engine import engine, postgresql
from ampmon_server.store.engine.errors import Conflict
from ampmon_server.store.schema.tables import runs
from batches import Trainer
from doubles import ManualClock
from postgres import Postgres
from statements import statements
from waiting import DEADLINE_S


@pytest.fixture
def shared(postgres: Postgres, migrated: str) -> Iterator[str]:
    """The URL of a PostgreSQL database at the newest schema."""
    url = postgres.new_database(migrated)
    yield url
    postgres.drop(url)


@pytest.fixture
def stores(tmp_path: Path, shared: str) -> Iterator[list[Store]]:
    """Two servers' stores on one database."""
    opened = [
        Store.open(Settings(data_directory=tmp_path / name, database_url=shared)) for name in "ab"
    ]
    yield opened
    for store in opened:
        store.close()


@pytest.fixture
def database(shared: str) -> Iterator[Engine]:
    opened = engine.open_engine(make_url(shared))
    yield opened
    opened.dispose()


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Start all calls together, and return their results."""
    ready = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result() for each in [pool.submit(run, call) for call in calls]]


def test_two_servers_may_begin_one_run(stores: list[Store]) -> None:
    """Batches of a new run, sent to two servers at once, are stored once each as one run."""
    for _ in range(5):
        first = Trainer()
        second = Trainer(first.run_id, rank=1, world_size=2)
        batches = [each.batch(each.updates(20)) for each in (first, second)]
        # Each batch goes to both servers, like a retry after no answer from the first.
        at_once(*(lambda s=s, b=b: s.ingest(b) for s in stores for b in batches))
        summary, _ = stores[0].run(first.run_id)

        assert (summary.ranks, summary.attempts, summary.updates) == (2, 1, 20)
        assert (summary.records, summary.lost_records, summary.version) == (40, 0, 2)


def test_ranks_of_one_run_share_what_is_remembered(stores: list[Store]) -> None:
    """Ranks that send to one server at the same time do not make it read the run again for each batch."""
    store, ranks = stores[0], [Trainer(rank=0, world_size=4)]
    ranks += [Trainer(ranks[0].run_id, rank, world_size=4) for rank in (1, 2, 3)]
    for rank in ranks * 2:
        store.ingest(rank.batch(rank.updates(1)))

    def train(rank: Trainer) -> None:
        for _ in range(10):
            store.ingest(rank.batch(rank.updates(2), headers=()))

    with statements(store._engine) as executed:
        at_once(*(partial(train, rank) for rank in ranks))
    assert not [each for each in executed if "FROM attempts" in each]
    assert store.run(ranks[0].run_id)[0].updates == 22


def test_a_rank_waits_for_another_as_long_as_for_a_lock(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is rejected, to be sent again, if another batch of its run takes longer than a lock may."""
    monkeypatch.setattr(postgresql, "LOCK_TIMEOUT_MS", 10)
    trainer = Trainer()
    batch = trainer.batch(trainer.updates(1))
    with stores[0]._memory.turn(trainer.run_id), pytest.raises(Busy):
        stores[0].ingest(batch)
    assert stores[0].ingest(batch).changed


def test_no_edit_is_lost(stores: list[Store]) -> None:
    """Each of several edits by two servers at once counts as a version."""
    trainer = Trainer()
    stores[0].ingest(trainer.batch(trainer.updates(1)))
    edits = [Edit(name="new"), Edit(tags=("a",)), Edit(archived=True), Edit(name="newer")]
    at_once(
        *(lambda s=stores[n % 2], e=each: s.edit(trainer.run_id, e) for n, each in enumerate(edits))
    )

    assert stores[0].run(trainer.run_id)[0].version == 1 + len(edits)


def test_what_is_read_is_one_state(database: Engine, stores: list[Store]) -> None:
    """A reader sees one snapshot and cannot write; a writer sees what was committed."""
    trainer = Trainer()
    version = select(runs.c.version)
    stores[0].ingest(trainer.batch(trainer.updates(1)))
    with engine.reading(database) as connection:
        before = connection.scalar(version)
        stores[1].ingest(trainer.batch(trainer.updates(1)))
        assert connection.scalar(version) == before
        isolation = connection.scalar(text("SHOW transaction_isolation"))
    with engine.writing(database) as connection:
        assert connection.scalar(version) == before + 1
        writes = connection.scalar(text("SHOW transaction_isolation"))
    assert (isolation, writes) == ("repeatable read", "read committed")
    with pytest.raises(Busy, match="read-only"), engine.reading(database) as connection:
        connection.execute(update(runs).values(version=0))


def test_a_deadlock_is_tried_again(database: Engine, stores: list[Store]) -> None:
    """Two writers in a deadlock both commit: the aborted one retries."""
    trainers = [Trainer(), Trainer()]
    for trainer in trainers:
        stores[0].ingest(trainer.batch(trainer.updates(1)))
    keys = [trainer.run_id.bytes for trainer in trainers]
    met = threading.Barrier(2)
    tries = []

    def crossing(connection: Connection, own: int) -> None:
        tries.append(own)
        change = update(runs).values(version=runs.c.version + 1)
        connection.execute(change.where(runs.c.run_id == keys[own]))
        if len(tries) <= 2:
            met.wait(DEADLINE_S)
        connection.execute(change.where(runs.c.run_id == keys[1 - own]))

    at_once(
        *(
            lambda own=own: engine.write(database, lambda connection: crossing(connection, own))
            for own in (0, 1)
        )
    )

    assert [stores[0].run(each.run_id)[0].version for each in trainers] == [3, 3]
    assert len(tries) > 2, "neither was given up"


def test_trying_again_ends(database: Engine) -> None:
    """A transaction that always conflicts raises Conflict after RETRY_S."""
    clock = ManualClock()
    tries = []

    def work(connection: Connection) -> None:
        tries.append(1)
        clock.advance(engine.RETRY_S / 4)
        connection.execute(
            text("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'serialization_failure'; END $$")
        )

    with pytest.raises(Conflict):
        engine.write(database, work, clock)
    assert len(tries) == 4


@pytest.mark.parametrize(
    ("statement", "setting"),
    [
        ("SELECT * FROM runs FOR UPDATE", "lock_timeout"),
        ("SELECT pg_sleep(10)", "statement_timeout"),
    ],
)
def test_nothing_waits_for_ever(
    shared: str, stores: list[Store], statement: str, setting: str
) -> None:
    """A blocked or slow statement raises Busy after the timeout in the URL; without one, a default is set."""
    trainer = Trainer()
    stores[0].ingest(trainer.batch(trainer.updates(1)))
    hasty = engine.open_engine(make_url(shared).update_query_dict({"options": f"-c {setting}=100"}))
    plain = engine.open_engine(make_url(shared))
    try:
        with engine.reading(plain) as connection:
            shown = connection.scalar(text(f"SHOW {setting}"))
        with engine.writing(plain) as holder:
            holder.execute(select(runs).with_for_update())
            with pytest.raises(Busy, match="timeout"), engine.writing(hasty) as connection:
                connection.execute(text(statement))
    finally:
        hasty.dispose()
        plain.dispose()
    limits_ms = {
        "lock_timeout": postgresql.LOCK_TIMEOUT_MS,
        "statement_timeout": postgresql.STATEMENT_TIMEOUT_MS,
    }
    assert shown == f"{limits_ms[setting] // 1000}s"


def test_connections_that_are_gone_are_not_used(stores: list[Store], postgres: Postgres) -> None:
    """After the database ends every connection, the next call opens a new one."""
    trainer = Trainer()
    stores[0].ingest(trainer.batch(trainer.updates(1)))
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'ampmon' AND pid <> pg_backend_pid()"
    )

    assert stores[0].run(trainer.run_id)[0].updates == 1


def test_two_servers_may_take_turns_with_one_attempt(
    stores: list[Store], tmp_path: Path, shared: str
) -> None:
    """Two servers that take turns with one attempt store each record once, and verification finds no fault."""
    trainer, other = Trainer(), Trainer()
    resumed = Trainer(trainer.run_id, resume_step=35)
    more = (*trainer.stream.parameters, wire.Parameter("late.weight", (4,), "float32"))
    grown = msgspec.structs.replace(trainer.stream, parameters=more)
    batches = [trainer.batch(trainer.updates(10, skipped=[3])) for _ in range(4)]
    batches[1] = msgspec.structs.replace(batches[1], headers=(trainer.attempt, grown))
    late = wire.OptimizerStep(
        optimizer="Adam", path="plain", skipped=True, culprits=(wire.Culprit(len(more) - 1, 1, 0),)
    )
    batches += [
        trainer.batch([trainer.update(optimizers=(late,))], headers=()),
        batches[2],
        resumed.batch(resumed.updates(20, sampled=[0])),
        trainer.batch(trainer.updates(5), headers=()),
        resumed.batch(resumed.updates(10, sampled=[5]), headers=()),
    ]
    for index, batch in enumerate(batches):
        stores[index % 2].ingest(batch)
        stores[1 - index % 2].ingest(other.batch(other.updates(1)))
    with Verification.begin(
        Settings(data_directory=tmp_path / "a", database_url=shared)
    ) as verification:
        assert [*verification.run(trainer.run_id), *verification.run(other.run_id)] == []
    summary, _ = stores[0].run(trainer.run_id)

    assert (summary.updates, summary.skipped, summary.sampled_updates) == (65, 4, 2)
    assert (summary.records, summary.lost_records, summary.attempts) == (76, 0, 2)
    assert stores[1].run(other.run_id)[0].records == len(batches)
