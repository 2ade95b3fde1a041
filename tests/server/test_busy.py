"""A server that cannot write, or whose write queue is full, answers 503, stores no partial batch and recovers."""

from __future__ import annotations

import asyncio
import resource
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import make_url

from ampmon import wire
from ampmon_server.background import writer as line
from ampmon_server.background.writer import LastWrite, QueueFull, WriteQueue, Writer
from ampmon_server.http.app import create_app
from ampmon_server.http.metrics import KEPT_S, WORDS_MAX, RejectedClients
from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine, sqlite
from ampmon_server.store.engine.opening import url_of
from batches import Trainer
from doubles import ManualClock
from postgres import Postgres
from serving import Server
from waiting import wait_for


HEADERS = {"Content-Type": "application/msgpack"}
INGEST = "/api/v1/ingest"

LOCKER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def impatient() -> Iterator[pytest.MonkeyPatch]:
    """Make writes fail at once while another process holds the lock, until it is undone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
        patched.setattr(engine, "RETRY_S", 0.0)
        yield patched


def test_a_locked_file_is_a_503(
    impatient: pytest.MonkeyPatch, client: TestClient, settings: Settings
) -> None:
    """While another process locks the file, a batch gets 503 with Retry-After. Once released, each is stored once."""
    trainers = [Trainer() for _ in range(3)]
    bodies = [wire.encode(each.batch(each.updates(5))) for each in trainers]
    path = str(url_of(settings).database)
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        refused = client.post(INGEST, content=bodies[0], headers=HEADERS)
        unready = client.get("/readyz")
        read = client.get("/api/v1/runs")
        assert other.stdin is not None
        other.stdin.close()
    impatient.undo()
    stored = [client.post(INGEST, content=body, headers=HEADERS).status_code for body in bodies]

    assert read.status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert (unready.status_code, client.get("/readyz").status_code) == (503, 200)
    assert (
        unready.json()["parts"]["database"] == "The last batch could not be written: see the log."
    )
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert stored == [200, 200, 200]
    assert [run["updates"] for run in client.get("/api/v1/runs").json()["runs"]] == [5, 5, 5]


def test_a_write_that_failed_is_reported_for_a_while() -> None:
    """A failed write counts as failed for a minute, or until a write succeeds."""
    clock = ManualClock()
    last = LastWrite(clock)
    assert not last.failed
    last.note(failed=True)
    clock.advance(59.0)
    assert last.failed
    clock.advance(1.0)
    assert not last.failed
    last.note(failed=True)
    last.note(failed=False)
    assert not last.failed


def test_a_full_disk_is_a_503(server: Server) -> None:
    """A server with a full disk answers 503, logs why and stores no partial batch. It recovers once there is room."""
    trainer = Trainer()
    batches = [
        wire.encode(trainer.batch(trainer.updates(500, sampled=range(0, 500, 5)))) for _ in range(4)
    ]

    def post(body: bytes) -> int:
        return server.request("POST", INGEST, body=body, headers=HEADERS).status

    assert server.process is not None
    database = server.directory / "server" / "ampmon.db-wal"
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    first = post(batches[0])
    full = (database.stat().st_size + 4096, limits[1])
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, full)
    denied, ready = [], []
    for body in batches[1:]:
        denied.append(post(body))
        ready.append(server.request("GET", "/readyz").status)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    stored = [post(body) for body in batches]
    summary = server.get(f"/runs/{trainer.run_id}")
    server.stop()
    with sqlite3.connect(server.directory / "server" / "ampmon.db") as connection:
        sound = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()

    assert (first, stored) == (200, [200] * 4)
    assert 503 in denied
    assert "POST /api/v1/ingest: 503: The database cannot be used now: " in server.printed
    assert set(denied) <= {200, 503}
    assert ready == denied
    assert (summary["updates"], summary["lost_records"]) == (2000, 0)
    assert sound == [("ok",)]


def test_a_database_that_lets_nobody_in_is_a_503(
    postgres: Postgres, migrated: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches get 503 while PostgreSQL has no free connection or is read-only, and the log says why each time.

    No answer names the database's location, and unauthenticated clients do not learn the cause.
    """
    url = postgres.new_database(migrated)
    # Judging would read: a connection in use while the pool is replaced is never closed.
    app = create_app(Settings(data_directory=tmp_path, database_url=url, judging=False))
    name = make_url(url).database
    trainer = Trainer()
    body = wire.encode(trainer.batch(trainer.updates(5)))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.headers["Authorization"] = f"Bearer {app.state.service.keys.token}"

        def post() -> int:
            answer = client.post(INGEST, content=body, headers=HEADERS)
            assert answer.status_code == 200 or answer.headers["Retry-After"] == "1"
            assert str(postgres.folder) not in answer.text
            return answer.status_code

        def post_of_a_stranger() -> int:
            token = f"Bearer ampmon_{'x' * 43}"
            answer = client.post(INGEST, content=body, headers={**HEADERS, "Authorization": token})
            assert (
                answer.status_code == 401
                or "Cannot check the token or session" in answer.json()["detail"]
            )
            return answer.status_code

        app.state.service.store._engine.dispose()
        taken = []
        try:
            while len(taken) < 100:
                taken.append(postgres.connect())
        except psycopg.OperationalError:
            exhausted = {post(), post_of_a_stranger()}
        finally:
            for each in taken:
                each.close()
        wait_for(postgres.lets_in, "a free connection")
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        app.state.service.store._engine.dispose()
        read_only = post()
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
        app.state.service.store._engine.dispose()
        assert (exhausted, read_only) == ({503}, 503)
        assert caplog.text.count("503: The database cannot be used now: ") == 3
        assert (post(), post(), post_of_a_stranger()) == (200, 200, 401)
        assert client.get(f"/api/v1/runs/{trainer.run_id}").json()["updates"] == 5
    postgres.drop(url)


def test_bodies_that_wait_are_bounded_in_bytes(client: TestClient) -> None:
    """A body gets 503 while waiting bodies fill the byte limit, and is stored once there is room."""
    trainer = Trainer()
    body = wire.encode(trainer.batch(trainer.updates(5)))
    writer: Writer = client.app.state.service.writer  # type: ignore[attr-defined]
    with writer.room() as grow:
        grow(line.WAITING_BYTES_MAX - 10)
        refused = client.post(INGEST, content=body, headers=HEADERS)
    stored = client.post(INGEST, content=body, headers=HEADERS)

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert stored.status_code == 200


def test_one_body_alone_always_has_room() -> None:
    """A body of any size is accepted when no other waits, and its room is freed at the end."""
    writer = Writer()
    for _ in range(2):
        with writer.room() as grow:
            grow(line.WAITING_BYTES_MAX)
            grow(1)
            with writer.room() as grow_other, pytest.raises(QueueFull):
                grow_other(1)
    with writer.room() as grow:
        grow(line.WAITING_BYTES_MAX)
    writer.close()


def test_whoever_stood_in_line_too_long_is_sent_away() -> None:
    """Requests that waited too long behind a hung write are rejected without being run."""
    clock, let_go = ManualClock(), threading.Event()
    writer, served = Writer(clock=clock), []

    async def queue() -> list[object]:
        first = asyncio.ensure_future(writer.run(let_go.wait))
        together: WriteQueue[int, None] = WriteQueue(writer)
        others = [asyncio.ensure_future(together.wait(item, 1, served.extend)) for item in range(5)]
        await asyncio.sleep(0)  # all of them are queued
        assert writer.waiting == 6
        clock.advance(line.WAITING_S + 1)
        let_go.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    answers = asyncio.run(queue())
    writer.close()

    assert answers[0] is True
    assert [type(each) for each in answers[1:]] == [QueueFull] * 5
    assert served == []


def test_work_done_in_time_is_answered_though_it_took_long() -> None:
    """An item that an earlier one's run has worked on gets its result, even if that run took too long."""
    clock, let_go = ManualClock(), threading.Event()
    writer = Writer(clock=clock)
    together: WriteQueue[int, int] = WriteQueue(writer)

    def work(items: Sequence[int]) -> list[int]:
        clock.advance(line.WAITING_S + 1)
        return [10 * item for item in items]

    async def queue() -> list[int]:
        first = asyncio.ensure_future(writer.run(let_go.wait))
        others = [asyncio.ensure_future(together.wait(item, 1, work)) for item in (1, 2)]
        await asyncio.sleep(0)  # all of them are queued
        let_go.set()
        await first
        return await asyncio.gather(*others)

    assert asyncio.run(queue()) == [10, 20]
    writer.close()


def test_whoever_waits_is_served_with_those_behind() -> None:
    """Queued items run together within limits of count and bytes. Each gets its own result or error."""
    writer, let_go = Writer(), threading.Event()
    together: WriteQueue[int, int] = WriteQueue(writer, most=3)
    done: list[list[int]] = []

    def work(items: Sequence[int]) -> list[int | Exception]:
        done.append(list(items))
        if 7 in items:
            raise OSError
        return [ValueError() if item == 2 else 10 * item for item in items]

    async def queue() -> list[object]:
        first = asyncio.ensure_future(writer.run(let_go.wait))
        sizes = {4: line.TOGETHER_BYTES_MAX}
        others = [
            asyncio.ensure_future(together.wait(item, sizes.get(item, 1), work))
            for item in range(9)
        ]
        await asyncio.sleep(0)
        let_go.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    _, *answers = asyncio.run(queue())
    writer.close()

    assert done == [[0, 1, 2], [3], [4], [5, 6, 7], [8]]
    assert [each if isinstance(each, int) else type(each) for each in answers] == [
        *(0, 10, ValueError, 30, 40),
        *(OSError, OSError, OSError, 80),
    ]


def test_whom_the_server_cannot_read_stands_in_the_list(client: TestClient) -> None:
    """A batch of another schema version gets 400, and the run list says once which side to upgrade."""
    trainer = Trainer()
    for version in (0, 2, 2):
        body = wire.encode(trainer.batch(schema_version=version))
        answer = client.post(INGEST, content=body, headers=HEADERS)
        assert answer.status_code == 400
        assert answer.json()["field"] == "schema_version"
    refused = client.get("/api/v1/runs").json()["refused"]

    assert [words.rpartition(". ")[2] for words in refused] == [
        "Upgrade ampmon on the client.",
        "Upgrade ampmon on the server.",
    ]


def test_refusals_are_few_and_forgotten() -> None:
    """Only the newest rejections are kept, for at most an hour."""
    now = 0.0
    rejected = RejectedClients(lambda: now)
    for number in range(WORDS_MAX + 3):
        rejected.note(str(number))
    now = KEPT_S / 2
    rejected.note("again")
    few = rejected.recent()
    now = KEPT_S + 1

    assert len(few) == WORDS_MAX
    assert few[-1] == "again"
    assert rejected.recent() == ["again"]


def test_a_client_that_goes_away_is_not_the_server_s_failure(server: Server) -> None:
    """A sender that disconnects in mid-request causes no traceback, and the next batch is stored."""
    head = f"POST {INGEST} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n"
    head += "Content-Type: application/msgpack\r\nContent-Length: 1000\r\n\r\nhalf"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode())
    wait_for(lambda: f"POST {INGEST}: 400" in server.printed)
    trainer = Trainer()
    body = wire.encode(trainer.batch(trainer.updates(5)))
    assert server.request("POST", INGEST, body=body, headers=HEADERS).status == 200

    assert "Traceback" not in server.printed
