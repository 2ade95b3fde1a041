"""When PostgreSQL fails over or restarts, the server reports it and loses nothing acknowledged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3
from sqlalchemy import make_url

from ampmon import wire
from ampmon_server.background.bus import Bus, BusListener
from ampmon_server.background.follower import BusFollower
from ampmon_server.settings import Settings
from ampmon_server.store import Advance, Store, Verification
from ampmon_server.store.alerts.alerts import Judgement
from ampmon_server.store.engine import engine
from batches import Trainer
from postgres import DRIVER, SETTINGS, USER, Postgres, following, running
from serving import Server
from waiting import wait_for


MSGPACK = {"Content-Type": "application/msgpack"}
SAFE = tuple(each for each in SETTINGS if not each.startswith("synchronous_commit"))
"""Settings with which a commit waits for the disk and, if there is one, for the standby."""


@pytest.fixture
def pair() -> Iterator[tuple[Postgres, Postgres]]:
    """A primary and the synchronous standby that each commit waits for."""
    with running(SAFE) as primary, following(primary) as standby:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        primary.execute("SELECT pg_reload_conf()")
        followed = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_for(lambda: primary.execute(followed))
        yield primary, standby


class Sending:
    """Sends batches one after another, each until it is acknowledged."""

    def __init__(self, server: Server) -> None:
        self.trainer = Trainer()
        self.acknowledged = 0
        self.statuses: set[int] = set()
        self._server = server

    @contextmanager
    def running(self) -> Iterator[Sending]:
        over = threading.Event()
        thread = threading.Thread(target=self._send, args=(over,))
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _send(self, over: threading.Event) -> None:
        while not over.is_set():
            body = wire.encode(self.trainer.batch(self.trainer.updates(5)))
            wait_for(lambda body=body: self._is_acknowledged(body))
            self.acknowledged += 5

    def _is_acknowledged(self, body: bytes) -> bool:
        status = self._post(body)
        if status != 200:
            self.statuses.add(status)
        return status == 200

    def _post(self, body: bytes) -> int:
        try:
            return self._server.request("POST", "/api/v1/ingest", body=body, headers=MSGPACK).status
        except (
            urllib3.exceptions.HTTPError
        ):  # the server waits longer for the database than this client
            return 0

    def goes_on(self) -> None:
        """Wait until more is acknowledged."""
        before = self.acknowledged
        wait_for(lambda: self.acknowledged > before + 20)


def test_nothing_is_lost_when_the_database_dies(
    pair: tuple[Postgres, Postgres], new_server: Callable[..., Server]
) -> None:
    """The server is unready while PostgreSQL is down, until failover or restart, and keeps acknowledged updates."""
    primary, standby = pair
    primary.execute("CREATE DATABASE ampmon")
    hosts = f"host={primary.folder}&host={standby.folder}&target_session_attrs=read-write"
    url = f"{DRIVER}://{USER}@/ampmon?{hosts}"
    server = new_server(options=["--database-url", url])

    def ready() -> int:
        return server.request("GET", "/readyz").status

    with Sending(server).running() as sending:
        sending.goes_on()
        primary.kill()
        wait_for(lambda: ready() == 503)
        standby.execute("SELECT pg_promote()")
        wait_for(lambda: ready() == 200)
        sending.goes_on()
        standby.kill()
        wait_for(lambda: ready() == 503)
        standby.start()
        wait_for(lambda: ready() == 200)
        sending.goes_on()
    run = server.get(f"/runs/{sending.trainer.run_id}")

    assert (run["updates"], run["lost_records"]) == (sending.acknowledged, 0)
    assert sending.statuses <= {0, 503}
    with Verification.begin(
        Settings(data_directory=server.directory, database_url=url), repair=False
    ) as verification:
        assert verification.strays() == verification.run(sending.trainer.run_id) == []


def test_servers_forget_commits_that_a_failover_lost(postgres: Postgres, tmp_path: Path) -> None:
    """After a failover to a standby that was behind, runs reach the same version again with other records."""
    url = postgres.new_database()
    settings = Settings(data_directory=tmp_path, database_url=url)
    one, other = Store.open(settings), Store.open(settings)
    trainer = Trainer()
    for store in (one, other):
        store.ingest(trainer.batch(trainer.updates(5)))
        store.close()  # its connections
    behind = postgres.new_database(str(make_url(url).database))
    one.ingest(trainer.batch(trainer.updates(5)))
    one.close()
    postgres.drop(url)
    names = (make_url(each).database for each in (behind, url))
    postgres.execute("ALTER DATABASE {} RENAME TO {}".format(*names))
    for store in (other, one):
        store.ingest(trainer.batch(trainer.updates(5)))

    run = one.run(trainer.run_id)[0]
    assert (run.updates, run.lost_records) == (20, 5)
    with Verification.begin(settings) as verification:
        assert verification.run(trainer.run_id) == []
    for store in (one, other):
        store.close()
    postgres.drop(url)


def test_a_run_that_a_failover_set_back_is_announced_and_judged(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Listeners hear of its next update, and a judgement of the updates that were lost is not stored."""
    url = postgres.new_database()
    store = Store.open(Settings(data_directory=tmp_path, database_url=url))
    trainer, bus = Trainer(), Bus()
    follower = BusFollower(bus, store)
    store.ingest(trainer.batch(trainer.updates(5)))
    store.close()  # its connections
    behind = postgres.new_database(str(make_url(url).database))
    for _ in range(5):
        store.ingest(trainer.batch(trainer.updates(5)))
    follower._deliver(since=0)
    lost = Judgement("lost", None, [], store.case(trainer.run_id).version)
    store.close()
    postgres.drop(url)
    names = (make_url(each).database for each in (behind, url))
    postgres.execute("ALTER DATABASE {} RENAME TO {}".format(*names))

    store.ingest(trainer.batch(trainer.updates(5)))
    store.keep(trainer.run_id, lost)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(_listening(bus))
    follower._deliver(since=0)
    assert bus.since(1, listener) == (2, [Advance(trainer.run_id, 2, 34)])
    assert store.run(trainer.run_id)[0].verdict is None
    store.keep(trainer.run_id, Judgement("kept", None, [], store.case(trainer.run_id).version))
    assert store.run(trainer.run_id)[0].verdict == "kept"
    loop.close()
    store.close()
    postgres.drop(url)


async def _listening(bus: Bus) -> BusListener:
    return bus.listen()


def test_a_connection_that_says_nothing_is_given_up(empty_database: str) -> None:
    """TCP keepalives and timeouts detect a dead database host within 30 s."""
    database = engine.open_engine(make_url(empty_database))
    with engine.reading(database) as connection:
        parameters = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
    database.dispose()

    seconds = int(parameters["keepalives_idle"]) + int(parameters["keepalives_interval"]) * int(
        parameters["keepalives_count"]
    )
    assert seconds <= 30
    assert int(parameters["tcp_user_timeout"]) <= 30_000
