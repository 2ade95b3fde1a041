"""Unread answers: how long the server keeps them, and clients that read slowly."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from uuid import uuid4

import msgspec
import pytest

from ampmon_server.http import process as server_process
from ampmon_server.http.connection import PACE_BYTES
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Advance, Sender
from batches import Trainer
from certificates import Authority
from timed_server import BUFFER_BYTES, Served, certified, connected, connecting, serving
from waiting import DEADLINE_S, wait_for


LIVE = "GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"


ASK = (
    "GET /api/v1/runs/{} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"
    "Connection: {}\r\n\r\n"
)


def held_by_the_system() -> int:
    """More bytes than sockets hold of an unread answer: twice what they grant or take, whichever is more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        with connected(listener.getsockname()[1]) as reader, listener.accept()[0] as writer:
            granted = writer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            granted += reader.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            writer.setblocking(False)
            taken = 0
            while select.select([], [writer], [], 0.1)[1]:
                taken += writer.send(b"x" * 2**20)
    return 2 * max(granted, taken)


def large(service: Service, size: int) -> str:
    """A run whose description takes so many bytes."""
    trainer = Trainer()
    header = msgspec.structs.replace(trainer.attempt, config={"filling": "x" * size})
    service.store.ingest(trainer.batch(headers=(header,)), Sender(None))
    return str(trainer.run_id)


def asked(served: Served, connection: socket.socket, then: str, size: int) -> None:
    """Ask for an answer of ``size`` bytes, and wait until the server holds what the sockets do not take."""
    run_id = large(served.service, size)
    connection.sendall(ASK.format(run_id, served.service.keys.token, then).encode())
    wait_for(lambda: "_abort_unless_read" in served.timers.pending)


def read(connection: socket.socket, each: int, between: Callable[[], object]) -> tuple[int, int]:
    """Bytes of the body announced and received; ``between`` is called after every ``each`` bytes."""
    answer, announced, since = b"", 0, 0
    with contextlib.suppress(ConnectionError):
        while not announced or len(answer) < announced:
            received = connection.recv(32768)
            if not received:
                break
            answer += received
            since += len(received)
            head, _, body = answer.partition(b"\r\n\r\n")
            if not announced:
                length = head.lower().partition(b"content-length: ")[2]
                announced, answer = int(length.partition(b"\r\n")[0]), body
            if since > each:
                between()
                since = 0
    return announced, len(answer)


@pytest.mark.parametrize("then", ["close", "keep-alive"])
def test_who_reads_nothing_is_cut_off(served: Served, then: str) -> None:
    """A client that reads nothing in time is cut off, whether the connection was to close or stay open."""
    held = held_by_the_system()
    with connected(served.port) as connection:
        asked(served, connection, then, 4 * held)
        wait_for(lambda: served.timers.run_out() or not served.connections)
        announced, came = read(connection, held, lambda: None)

    assert 0 < came < announced / 2


@pytest.mark.parametrize("then", ["close", "keep-alive"])
def test_who_reads_slowly_gets_it_all(served: Served, then: str) -> None:
    """A client that reads slowly gets the whole answer, after several timeouts."""
    passed = []

    def wait() -> None:
        passed.append("_abort_unless_read" in served.timers.pending)
        served.timers.run_out()

    held = held_by_the_system()
    with connected(served.port) as connection:
        asked(served, connection, then, 10 * held)
        # More than the sockets hold was read, so some of the server's own buffer was read too.
        announced, came = read(connection, held, wait)

    assert came == announced > 10 * held
    assert passed.count(True) > 5


def test_who_reads_a_little_now_and_then_is_cut_off(served: Served) -> None:
    """A client that reads less than the least pace is cut off, so that it cannot hold an export's place."""
    held = held_by_the_system()
    with connected(served.port) as connection:
        asked(served, connection, "close", 4 * held + 4 * PACE_BYTES)
        (kept,) = served.process.server_state.connections
        left = kept.transport.get_write_buffer_size()
        served.timers.run_out()
        while kept.transport.get_write_buffer_size() == left:
            connection.recv(1024)
        assert left > kept.transport.get_write_buffer_size() > left - PACE_BYTES
        served.timers.run_out()
        wait_for(lambda: not served.connections)


@pytest.mark.parametrize("over_tls", [False, True])
def test_an_event_stream_that_is_not_read_ends(
    settings: Settings, authority: Authority, over_tls: bool
) -> None:
    """An event stream that is not read ends and frees its place, over TLS too."""
    with (
        serving(certified(settings, authority) if over_tls else settings) as served,
        connecting(served.port, authority if over_tls else None) as connection,
    ):
        connection.sendall(f"{LIVE.format(served.service.keys.token)}\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert served.service.limits._streams.total() == 1

        def ended() -> bool:
            for _ in range(500):
                served.service.bus.publish(Advance(uuid4(), 1, 1))
            served.timers.run_out()
            return not served.service.limits._streams.total()

        wait_for(ended)


def test_who_reads_nothing_holds_up_no_end(
    settings: Settings, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping server does not wait for a client that leaves its answer over TLS unread."""
    monkeypatch.setattr(server_process, "STOP_SECONDS", 10 * DEADLINE_S)  # too long to cut it off
    with contextlib.ExitStack() as client, serving(certified(settings, authority)) as served:
        connection = client.enter_context(connecting(served.port, authority))
        asked(served, connection, "close", 4 * held_by_the_system())
        (kept,) = served.process.server_state.connections
        wait_for(kept.transport.is_closing)
