"""A stopping server: it finishes what was begun, waits for nobody, and exits in time."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
import urllib3
from sqlalchemy import make_url

from ampmon import wire
from batches import Trainer
from posted import post
from postgres import Postgres
from scripts import Script
from serving import Server
from waiting import DEADLINE_S, wait_for
from warm import start


MSGPACK = {"Content-Type": "application/msgpack"}
HASTY, PATIENT = (0.5, 1.5), (DEADLINE_S, 2 * DEADLINE_S)
"""Seconds to finish requests, and seconds until the process is ended."""


class Timed(Server):
    """A server with other times to stop."""

    times = HASTY

    def _begin(self, command: Sequence[str], environment: Mapping[str, str]) -> Script:
        stop, end = self.times
        change = f"from ampmon_server.http import process as p; p.STOP_SECONDS, p.END_SECONDS = {stop}, {end}"
        return start(command, self.log, environment, before=change)


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server with other times to stop."""
    started: list[Server] = []

    def start(times: tuple[float, float], **options: Sequence[str]) -> Server:
        server = Timed(tmp_path / "timed", **options)
        server.times = times
        started.append(server)
        server.start(os.environ)
        return server

    yield start
    for server in started:
        server.stop()


@contextmanager
def locked(postgres: Postgres, url: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Lock the updates of all runs, call ``waiting``, and enter once two backends wait for the lock."""
    database = make_url(url).database or ""
    with postgres.connect(database) as other, other.transaction():
        other.execute("LOCK TABLE update_pages IN ACCESS EXCLUSIVE MODE")
        waiting()
        wait_for(
            lambda: (
                postgres.execute(
                    "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted", database
                )[0][0]
                == 2
            )
        )
        yield


def stops(server: Server) -> None:
    """Send SIGTERM."""
    assert server.process is not None
    server.process.terminate()


def ended(server: Server) -> int:
    """Wait for the server to exit, and return its code."""
    assert server.process is not None
    return server.process.wait(DEADLINE_S)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_was_begun_is_finished(
    timed: Callable[..., Server], database: str, postgres: Postgres
) -> None:
    """At SIGTERM streams end whole, new connections are refused, and waiting requests are answered."""
    server = timed(PATIENT, options=["--database-url", database, "--no-judging"])
    trainer = Trainer()
    post(server, trainer.batch(trainer.updates(3)))
    body = wire.encode(trainer.batch(trainer.updates(2)))
    stream = server.request("GET", "/api/v1/live", preload_content=False)
    figure = f"/api/v1/runs/{trainer.run_id}/figures/skips"
    with ThreadPoolExecutor() as pool:
        asked = []

        def ask() -> None:
            asked.append(pool.submit(server.request, "GET", figure))
            asked.append(
                pool.submit(server.request, "POST", "/api/v1/ingest", body=body, headers=MSGPACK)
            )

        with locked(postgres, database, ask):
            stops(server)
            received = stream.read()  # raises where it is cut off
            wait_for(lambda: not server.answers())
        answers = [each.result() for each in asked]

    assert received.startswith(b"event: advance\n")
    assert [answer.status for answer in answers] == [200, 200]
    assert {answer.headers["Connection"] for answer in answers} == {"close"}
    assert ended(server) == 0
    server.start()
    assert server.get(f"/runs/{trainer.run_id}")["updates"] == 5


def test_nobody_who_does_not_read_keeps_it(timed: Callable[..., Server]) -> None:
    """A client that does not read a large answer is cut off, and the server exits with 0."""
    server = timed(HASTY)
    with socket.socket() as sleeper:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.connect(("127.0.0.1", server.port))
        asked = f"GET /vendor/plotly.min.js HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n\r\n"
        sleeper.sendall(asked.encode())
        assert sleeper.recv(12) == b"HTTP/1.1 200"
        stops(server)

        assert ended(server) == 0
    assert "Traceback" not in server.printed


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_what_cannot_end_is_ended(
    timed: Callable[..., Server], database: str, postgres: Postgres
) -> None:
    """A server whose database blocks requests too long exits with 1, and unanswered batches are not stored."""
    endless = f"{database}&options=-c%20lock_timeout%3D0"
    server = timed(HASTY, options=["--database-url", endless, "--no-judging"])
    trainers = [Trainer(UUID(int=number)) for number in (1, 2)]  # one thread at a time writes a run
    for trainer in trainers:
        post(server, trainer.batch(trainer.updates(3)))
    with ThreadPoolExecutor() as pool:
        asked = []

        def ask() -> None:
            for trainer in trainers:
                body = wire.encode(trainer.batch(trainer.updates(2)))
                asked.append(
                    pool.submit(
                        server.request, "POST", "/api/v1/ingest", body=body, headers=MSGPACK
                    )
                )

        with locked(postgres, database, ask):
            stops(server)
            code = ended(server)
        unanswered = [isinstance(each.exception(), urllib3.exceptions.HTTPError) for each in asked]
    rows = postgres.execute("SELECT updates FROM runs", make_url(database).database or "")

    assert (code, unanswered, rows) == (1, [True, True], [(3,), (3,)])
    assert server.printed.count("unfinished requests were not acknowledged") == 1


def test_a_balancer_learns_first(new_server: Callable[..., Server]) -> None:
    """With `--drain` a stopping server is not ready but still answers; a second signal ends the wait."""
    server = new_server(options=["--drain", "3600"])
    trainer = Trainer()
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)  # one process only logs that it cannot
    wait_for(lambda: "cannot replace itself" in server.printed)
    stops(server)
    wait_for(lambda: server.request("GET", "/readyz").status == 503)
    readiness = server.request("GET", "/readyz").json()
    kept = urllib3.PoolManager(retries=False)
    headers = {"Authorization": f"Bearer {server.token}"}
    answer = kept.request("GET", f"{server.url}/api/v1/runs", headers=headers)
    post(server, trainer.batch(trainer.updates(2)))

    assert readiness["detail"] == "The server is stopping."
    assert readiness["parts"] == {
        "database": "ok",
        "schema": "ok",
        "bus": "The server is stopping.",
    }
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert server.process.poll() is None
    stops(server)
    assert ended(server) == 0


def test_a_drain_ends_by_itself(new_server: Callable[..., Server]) -> None:
    """After the seconds of `--drain` the server exits without a second signal."""
    server = new_server(options=["--drain", "0.1"])
    stops(server)

    assert ended(server) == 0
