"""Limits on slow, oversized and malformed requests: heads, bodies, chunks and waiting connections."""

from __future__ import annotations

import contextlib
import logging
import re
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from ampmon_server.client import answering
from ampmon_server.http.app import create_app
from ampmon_server.http.connection import Connection
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Sender
from batches import Trainer
from certificates import Authority
from timed_server import Served, certified, connecting, serving
from waiting import DEADLINE_S, wait_for


INNER = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BODY_S = 0.2
"""The timeout, in seconds, of a body that never arrives whole."""


def said(port: int, pieces: Iterator[bytes]) -> str:
    """The first line of the answer to these pieces, or "" if the connection ended without one."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                if select.select([connection], [], [], 0)[0]:
                    break
        return first_line(connection)


def first_line(connection: socket.socket) -> str:
    """The first line of the answer, or "" if the connection ended without one."""
    try:
        return connection.recv(65536).partition(b"\r\n")[0].decode()
    except ConnectionError:
        return ""


def all_of(connection: socket.socket) -> bytes:
    """Read until the other side closes."""
    pieces = []
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "many headers": lambda: (HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)),),
    "one huge header": lambda: (HEAD, *[b"X: " + b"y" * 65_536] * 64, b"\r\n\r\n"),
    "a huge line": lambda: (b"GET /" + b"y" * 2**20,),
    "a whole head at once": lambda: (HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",),
    "a whole head behind another": lambda: (
        (HEAD + b"\r\n") * 2 + HEAD + b"X: " + b"y" * 100_000 + b"\r\nConnection: close\r\n\r\n",
    ),
    "headers without an end": lambda: (HEAD, *[b"X: y\r\n" * 1000] * 1000),
}
SLOW = {"nothing": b"", "a slow header": HEAD + b"X: y\r\n", "a slow line": b"GET /y"}


@pytest.mark.parametrize("how", FLOODS)
def test_a_head_is_so_large_and_no_more(served: Served, how: str) -> None:
    """Too many or too long headers end in a 4xx or a closed connection. Other requests are answered."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in FLOODS[how]():
                connection.sendall(piece)
        lines = re.findall(rb"HTTP/1.1 (\d+)", all_of(connection))

    assert lines[-1:] in ([], [b"400"], [b"431"])
    assert said(served.port, iter([HEAD + b"\r\n"])) == "HTTP/1.1 401 Unauthorized"


@pytest.mark.parametrize("how", SLOW)
def test_a_head_is_waited_for_so_long(served: Served, how: str) -> None:
    """A head that misses its timeout ends in a 400 or a closed connection. Other requests are answered."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        connection.sendall(SLOW[how])
        wait_for(lambda: served.timers.pending)
        wait_for(lambda: served.timers.run_out() or not served.connections)
        assert first_line(connection) in {"", "HTTP/1.1 400 Bad Request"}

    assert said(served.port, iter([HEAD + b"\r\n"])) == "HTTP/1.1 401 Unauthorized"


TAKEN = [
    ("POST", "/api/v1/ingest"),
    ("PATCH", "/api/v1/runs/{run_id}"),
    ("POST", "/api/v1/tokens"),
    ("POST", "/api/v1/mutes"),
]
"""Routes that take a body from authenticated clients."""


def begun(service: Service, method: str, path: str) -> bytes:
    """The head of a request for an existing run, without its body."""
    trainer = Trainer(uuid4())
    service.store.ingest(trainer.batch(trainer.updates(1)), Sender(None))
    return (
        f"{method} {path.format(run_id=trainer.run_id)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {service.keys.token}\r\n"
        "Content-Type: application/msgpack\r\nContent-Length: 1000\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(("method", "path"), TAKEN)
def test_a_slow_body_is_sent_away(settings: Settings, method: str, path: str) -> None:
    """A body that misses its timeout gets 408, and the OpenAPI document lists that answer."""
    with serving(replace(settings, body_seconds_max=BODY_S)) as served:
        line = said(served.port, iter([begun(served.service, method, path), b"x"]))

    assert line == "HTTP/1.1 408 Request Timeout"
    operation = create_app(settings).openapi()["paths"][path][method.lower()]
    assert "408" in operation["responses"]


@pytest.mark.parametrize(("method", "path"), TAKEN)
def test_a_body_whose_sender_is_gone_fails_nothing(
    served: Served, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    """A client that disconnects within a body causes one log line with status 400."""
    caplog.set_level(logging.INFO, "ampmon_server")
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        connection.sendall(begun(served.service, method, path) + b"x")

    assert wait_for(lambda: [each.getMessage() for each in caplog.records]) == [
        f"{method} {path}: 400"
    ]


def test_a_head_in_pieces_is_one(served: Served) -> None:
    """A head may arrive byte by byte, and its connection can be reused."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        for _ in range(2):
            for byte in HEAD + b"\r\n":
                connection.sendall(bytes([byte]))
            assert answer_on(connection).startswith(b"HTTP/1.1 401")


REFUSED = b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"


def answer_on(connection: socket.socket) -> bytes:
    """Read a whole problem document with its head."""
    answer = b""
    while not answer.endswith(b"}"):
        received = connection.recv(65536)
        assert received
        answer += received
    return answer


def test_a_body_that_was_answered_is_not_waited_for(served: Served) -> None:
    """A client rejected before its whole body arrived is cut off at the timeout."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        connection.sendall(REFUSED % 1000)
        assert answer_on(connection).startswith(b"HTTP/1.1 401")
        for _ in range(10):
            connection.sendall(b"x")
        wait_for(lambda: "_abort" in served.timers.pending)
        assert served.connections == 1
        served.timers.run_out()
        wait_for(lambda: not served.connections)


def test_a_body_that_was_answered_may_end(served: Served) -> None:
    """A client that sends the rest of a rejected body in time can reuse the connection."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        for _ in range(3):
            connection.sendall(REFUSED % 10)
            assert answer_on(connection).startswith(b"HTTP/1.1 401")
            wait_for(lambda: served.timers.pending == ["_abort"])
            connection.sendall(b"x" * 10)
            wait_for(lambda: "_abort" not in served.timers.pending)


HALF = {
    "nothing": b"",
    "half a head": HEAD,
    "half a body that is answered": REFUSED % 1000 + b"x",
    "half a body": b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nx",
    "a request that is answered": HEAD + b"\r\n",
}


@pytest.mark.parametrize("half", HALF)
def test_whoever_waits_longest_gives_way(
    settings: Settings, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too many waiting connections, the oldest is closed, whatever it waits for."""
    monkeypatch.setattr("ampmon_server.http.connection.WAITING_MAX", 8)
    with serving(settings) as served, contextlib.ExitStack() as stack:
        first, *others = [
            stack.enter_context(socket.create_connection(("127.0.0.1", served.port), DEADLINE_S))
            for _ in range(12)
        ]
        for connection in (first, *others):
            with contextlib.suppress(ConnectionError):
                connection.sendall(HALF[half])

        assert said(served.port, iter([HEAD + b"\r\n"])) == "HTTP/1.1 401 Unauthorized"
        wait_for(lambda: served.connections <= 8)
        with contextlib.suppress(ConnectionError):
            while first.recv(65536):
                pass


LIVE = "GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"


DAMAGED: dict[str, tuple[str, bytes]] = {
    "after an answer": (HEAD.decode(), b"HTTP/1.1 401"),
    "within an answer": (LIVE, b"HTTP/1.1 200"),
    "before an answer": ("POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n", b""),
}
"""A request head, and the answer to await before sending an invalid chunk."""


@pytest.mark.parametrize("when", DAMAGED)
@pytest.mark.parametrize("over_tls", [False, True])
def test_a_body_that_is_none_fails_nothing(
    settings: Settings,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    when: str,
    over_tls: bool,
) -> None:
    """An invalid chunk ends the connection and its request without an error in the log, over TLS too."""
    caplog.set_level(logging.INFO, "ampmon_server")
    head, answer = DAMAGED[when]
    with (
        serving(certified(settings, authority) if over_tls else settings) as served,
        connecting(served.port, authority if over_tls else None) as connection,
    ):
        head = head.format(served.service.keys.token)
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        if answer:
            assert connection.recv(65536).startswith(answer)
        connection.sendall(b"no length\r\n")
        with contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass
        if not answer:  # the request ends too
            wait_for(lambda: "POST /login: " in caplog.text)
        wait_for(lambda: not served.service.limits._streams.total())

    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("coding", ["chunked", "Chunked", "\tchunked ", "\r\n chunked"])
@pytest.mark.parametrize("path", ["/login", "/api/v1/ingest"])
def test_a_body_with_two_ends_is_refused(served: Served, path: str, coding: str) -> None:
    """A request with both a length and chunks gets 400 and a closed connection. Its body is not read as a request."""
    body = b"0\r\n\r\n" + INNER
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with connecting(served.port, None) as connection:
        connection.sendall(f"{head}Transfer-Encoding: {coding}\r\n\r\n".encode() + body)
        received = all_of(connection)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("end", ["XX", "\n", "X\n", ""])
def test_a_chunk_without_its_end_ends_the_connection(served: Served, end: str) -> None:
    """Bytes after a chunk without its line break are never read as another request."""
    head = "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connecting(served.port, None) as connection:
        connection.sendall(f"{head}2\r\nab{end}0\r\n\r\n".encode() + INNER)
        received = all_of(connection)

    assert received.count(b"HTTP/1.1") <= 1


def test_a_foreign_name_ends_its_connection(served: Served) -> None:
    """A request with a foreign Host gets 421, and the next on its connection is not answered."""
    with connecting(served.port, None) as connection:
        connection.sendall(INNER.replace(b"127.0.0.1", b"evil.example") + INNER)
        received = all_of(connection)

    assert received.startswith(b"HTTP/1.1 421 ")
    assert received.count(b"HTTP/1.1") == 1


def test_a_server_of_one_command_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that a command starts for itself does not hold small answers back (Nagle's algorithm)."""
    held_back = []
    made = Connection.connection_made

    def noted(self: Connection, transport: Any) -> None:
        made(self, transport)
        accepted = transport.get_extra_info("socket")
        held_back.append(not accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(Connection, "connection_made", noted)
    with answering.filled(lambda url, token: None) as server:
        server.get("/runs")

    assert held_back == [False]
