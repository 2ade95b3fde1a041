"""Changes of runs reach listeners in the same server process, and by polling those in others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event, make_url
from starlette.testclient import TestClient

from ampmon import wire
from ampmon_server.background.bus import Bus
from ampmon_server.background.follower import BusFollower
from ampmon_server.http.app import create_app
from ampmon_server.settings import Settings
from ampmon_server.store import Advance, Edit, Store
from batches import Trainer
from postgres import Postgres
from waiting import DEADLINE_S, wait_for


@dataclass
class Process:
    """One server process's store, bus and follower, simulated inside this process."""

    store: Store
    bus: Bus = field(default_factory=Bus)
    follower: BusFollower | None = None
    following: Callable[[], None] | None = None
    """Ends the thread that runs the follower."""

    def ingest(self, batch: wire.Batch) -> None:
        """Store a batch and publish it, as the route does."""
        receipt = self.store.ingest(batch)
        self.bus.publish(Advance(batch.run_id, receipt.ack.version, receipt.last_step))

    @contextmanager
    def ear(self, runs: list[UUID] | None = None) -> Iterator[list[Advance]]:
        """Listen on an event loop in a thread, and append each advance to the yielded list."""
        received: list[Advance] = []
        listening = threading.Event()

        async def listen() -> None:
            with self.bus.listen(runs) as listener:
                listening.set()
                async for advances in listener.advances():
                    received.extend(advances)

        end = in_a_thread(listen())
        assert listening.wait(DEADLINE_S)
        yield received
        end()

    def close(self) -> None:
        self.bus.close()
        if self.following is not None:
            self.following()
        self.store.close()


def open_process(settings: Settings) -> Process:
    process = Process(Store.open(settings))
    if process.store.shared:
        process.follower = BusFollower(process.bus, process.store)
        process.following = in_a_thread(process.follower.keep_following())
    return process


def in_a_thread(work: Coroutine[Any, Any, None]) -> Callable[[], None]:
    """Run a coroutine on an event loop of its own. Return what cancels it and waits for its end."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    return end


on_both = pytest.mark.parametrize("database", ["sqlite", "postgresql"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
Pair = tuple[Process, Process]


@pytest.fixture
def pair(settings: Settings) -> Iterator[Pair]:
    """Two server processes on one database, a listener and a writer. On SQLite they are the same."""
    near = open_process(settings)
    far = open_process(settings) if near.store.shared else near
    yield near, far
    for process in {id(near): near, id(far): far}.values():
        process.close()


@on_both
def test_what_is_stored_there_is_announced_here(pair: Pair) -> None:
    """A batch, an edit and a deletion in one process reach the other, each with its version and last step."""
    near, far = pair
    trainer = Trainer()
    far.ingest(trainer.batch(trainer.updates(3)))
    run = trainer.run_id
    with near.ear() as received:
        far.ingest(trainer.batch(trainer.updates(2)))
        wait_for(lambda: Advance(run, 2, 4) in received)
        summary = far.store.edit(run, Edit(name="renamed"))
        far.bus.publish(Advance(run, summary.version, summary.last_step))
        wait_for(lambda: Advance(run, 3, 4) in received)
        far.bus.publish(far.store.delete(run))
        wait_for(lambda: Advance(run, 4, 4) in received)


@on_both
def test_a_listener_hears_of_its_runs_only(pair: Pair) -> None:
    """A listener gets the changes of its own runs only."""
    near, far = pair
    mine, other = Trainer(), Trainer()
    with near.ear([mine.run_id]) as received:
        far.ingest(other.batch(other.updates(1)))
        far.ingest(mine.batch(mine.updates(1)))
        wait_for(lambda: received)

    assert received == [Advance(mine.run_id, 1, 0)]


@on_both
def test_each_version_is_announced_once(pair: Pair) -> None:
    """Versions of a busy run arrive in order, none twice, the newest last."""
    near, far = pair
    trainer = Trainer()
    with near.ear() as received:
        for _ in range(30):
            far.ingest(trainer.batch(trainer.updates(1)))
        wait_for(lambda: received and received[-1].version == 30)
        later = Trainer()
        far.ingest(later.batch(later.updates(1)))
        wait_for(lambda: received[-1].run_id == later.run_id)
    versions = [advance.version for advance in received[:-1]]

    assert versions == sorted(set(versions))
    assert received[-2:] == [Advance(trainer.run_id, 30, 29), Advance(later.run_id, 1, 0)]


@on_postgresql
def test_a_late_commit_is_announced(pair: Pair, postgres: Postgres, settings: Settings) -> None:
    """A change whose timestamp is 90 s old when it commits is still delivered."""
    near, far = pair
    trainer = Trainer()
    far.ingest(trainer.batch(trainer.updates(1)))
    with near.ear() as received:
        wait_for(lambda: received)
        late = round((time.time() - 90) * 1e6)
        statement = f"UPDATE runs SET version = 2, changed = {late}"
        postgres.execute(statement, str(make_url(settings.database_url).database))
        wait_for(lambda: Advance(trainer.run_id, 2, 0) in received)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Counter[Bus]:
    """Count how often each follower looks for listeners. It looks every 10 ms."""
    counted: Counter[Bus] = Counter()

    def listeners(bus: Bus) -> int:
        counted[bus] += 1
        return len(bus._listeners)

    monkeypatch.setattr(Bus, "listeners", property(listeners))
    monkeypatch.setattr("ampmon_server.background.follower.POLL_S", 0.01)
    return counted


@on_postgresql
def test_nobody_is_asked_for_nobody(rounds: Counter[Bus], pair: Pair) -> None:
    """While nobody listens, a follower runs no query, even though another process advances a run."""
    near, far = pair
    trainer, asked = Trainer(), []
    event.listen(near.store._engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    far.ingest(trainer.batch(trainer.updates(1)))
    before = rounds[near.bus]
    wait_for(lambda: rounds[near.bus] > before + 20)
    assert asked == []
    with near.ear():
        wait_for(lambda: asked)


@on_postgresql
def test_a_server_that_stops_asks_nothing(pair: Pair) -> None:
    """The follower ends without a query: a database that does not answer would hold up the server."""
    near, asked = pair[0], []
    event.listen(near.store._engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    assert near.following is not None
    near.following()
    near.following = None
    assert asked == []


@on_postgresql
def test_a_follower_outlives_a_lack_of_threads(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that gets no thread to ask the database with reports trouble, and goes on when it gets one."""
    near, far = pair
    follower, trainer = near.follower, Trainer()
    assert follower is not None

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(asyncio, "to_thread", none_left)
        with near.ear():
            wait_for(lambda: follower.trouble)
    with near.ear() as received:
        far.ingest(trainer.batch(trainer.updates(1)))
        wait_for(lambda: received)


@on_postgresql
def test_an_app_that_stops_leaves_no_connection(
    postgres: Postgres, settings: Settings, tmp_path: Path
) -> None:
    """An app that stops while its follower and a forwarder wait for the database closes their connections too."""
    settings = replace(settings, forward=(f"tensorboard:{tmp_path}",))
    name = make_url(settings.database_url).database
    ((began,),) = postgres.execute("SELECT clock_timestamp()")  # databases are used again
    connections = f"FROM pg_stat_activity WHERE datname = '{name}' AND backend_start > '{began}'"
    locking = postgres.connect(str(name))
    with TestClient(create_app(settings)) as client:
        assert client.portal is not None
        bus: Bus = client.app.state.service.bus  # type: ignore[attr-defined]
        locking.execute("BEGIN; LOCK TABLE runs")
        client.portal.call(bus.listen)
        waiting = f"SELECT 1 {connections} AND wait_event_type = 'Lock'"
        wait_for(lambda: len(postgres.execute(waiting)) == 2)
        unlocking = threading.Thread(target=lambda: (wait_for(lambda: bus.closed), locking.close()))
        unlocking.start()
    unlocking.join()
    wait_for(lambda: not postgres.execute(f"SELECT query {connections}"))


@on_postgresql
def test_a_lost_connection_costs_time_only(
    pair: Pair, postgres: Postgres, settings: Settings
) -> None:
    """When the database ends all connections, changes that are stored then still arrive, each once."""
    near, far = pair
    name, trainer = make_url(settings.database_url).database, Trainer()
    with near.ear() as received:
        postgres.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        far.ingest(trainer.batch(trainer.updates(1)))
        wait_for(lambda: received)
    assert received == [Advance(trainer.run_id, 1, 0)]


@on_postgresql
def test_trouble_ends_with_the_last_listener(
    pair: Pair, postgres: Postgres, settings: Settings
) -> None:
    """A follower that cannot read the database reports trouble, and clears it when its last listener leaves."""
    follower, name = pair[0].follower, make_url(settings.database_url).database
    assert follower is not None
    with pair[0].ear():
        postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        postgres.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        wait_for(lambda: follower.trouble)
    wait_for(lambda: follower.trouble is None)
    postgres.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
