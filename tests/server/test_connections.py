"""What the other side of a connection may take its time over: a head, a body, the rest of one, reading an answer."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from ampmon_server.app import create_app
from ampmon_server.bus import Advance
from ampmon_server.process import Process
from ampmon_server.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Sender
from batches import Trainer
from certificates import Authority
from waiting import wait_for


HEAD_S, BODY_S, UNREAD_S = 1.0, 0.5, 0.8
BUFFER_BYTES = 4096
"""What the system holds of an answer that is not read, on either side: it makes a little more of it."""


@contextlib.contextmanager
def serving(settings: Settings) -> Iterator[tuple[int, Service]]:
    """The port of a server process in a thread, whose patience is short."""
    service = Service.open(
        replace(
            settings,
            head_seconds_max=HEAD_S,
            body_seconds_max=BODY_S,
            unread_seconds_max=UNREAD_S,
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ready = threading.Event()
        process = Process(service, ready=ready.set)
        thread = threading.Thread(target=process.run, args=([listener],), daemon=True)
        thread.start()
        assert ready.wait(30)
        yield listener.getsockname()[1], service
        process.should_exit = True
        thread.join()
    service.close()


@pytest.fixture
def served(settings: Settings) -> Iterator[tuple[int, Service]]:
    with serving(settings) as server:
        yield server


@pytest.fixture
def port(served: tuple[int, Service]) -> tuple[int, str]:
    """The port of such a server, and its token."""
    return served[0], served[1].keys.token


def said(port: int, pieces: Iterator[bytes]) -> tuple[str, float]:
    """The first line of the answer to these pieces, "" for a connection that ended without, and the seconds it took."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                connection.settimeout(0.0)
                with contextlib.suppress(BlockingIOError):
                    if connection.recv(1, socket.MSG_PEEK) is not None:
                        break
                connection.settimeout(10)
        connection.settimeout(10)
        try:
            answer = connection.recv(65536)
        except ConnectionError:
            answer = b""
    return answer.partition(b"\r\n")[0].decode(), time.monotonic() - began


def drip(head: bytes, piece: bytes) -> Iterator[bytes]:
    """The head, and then a little now and then, for longer than anybody waits."""
    yield head
    for _ in range(100):
        time.sleep(0.05)
        yield piece


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "many headers": lambda: (HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)), b"\r\n"),
    "one huge header": lambda: (HEAD, *[b"X: " + b"y" * 65_536] * 64, b"\r\n\r\n"),
    "a huge line": lambda: (b"GET /" + b"y" * 2**20,),
    "headers without an end": lambda: (HEAD, *[b"X: y\r\n" * 1000] * 1000),
    "a slow header": lambda: drip(HEAD, b"X: y\r\n"),
    "a slow line": lambda: drip(b"GET /", b"y"),
}


@pytest.mark.parametrize("how", FLOODS)
def test_a_head_is_so_large_and_no_more(port: tuple[int, str], how: str) -> None:
    """Too many headers, one too long, and some that take their time end in a 400 or the end of the connection, soon."""
    line, seconds = said(port[0], iter(FLOODS[how]()))

    assert line in {"", "HTTP/1.1 400 Bad Request"}
    assert seconds < 5
    assert said(port[0], iter([HEAD + b"\r\n"]))[0] == "HTTP/1.1 401 Unauthorized"


TAKEN = [
    ("POST", "/api/v1/ingest"),
    ("PATCH", "/api/v1/runs/{run_id}"),
    ("POST", "/api/v1/tokens"),
    ("POST", "/api/v1/mutes"),
]
"""What takes a body from those who are known."""


def begun(service: Service, method: str, path: str) -> bytes:
    """The head of a request whose body is to follow, to a run that is there."""
    trainer = Trainer(uuid4())
    service.store.ingest(trainer.batch(trainer.updates(1)), Sender(None))
    return (
        f"{method} {path.format(run_id=trainer.run_id)} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {service.keys.token}\r\n"
        "Content-Type: application/msgpack\r\nContent-Length: 1000\r\n\r\n"
    ).encode()


@pytest.mark.parametrize(("method", "path"), TAKEN)
def test_a_slow_body_is_sent_away(served: tuple[int, Service], method: str, path: str) -> None:
    """A body that does not arrive in its time is answered 408, as the document of the routes says."""
    port, service = served
    line, seconds = said(port, drip(begun(service, method, path), b"x"))

    assert line == "HTTP/1.1 408 Request Timeout"
    assert BODY_S <= seconds < 5
    operation = create_app(service.settings, service).openapi()["paths"][path][method.lower()]
    assert "408" in operation["responses"]


@pytest.mark.parametrize(("method", "path"), TAKEN)
def test_a_body_whose_sender_is_gone_fails_nothing(
    served: tuple[int, Service], caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    """Who goes away within a body is a line of the log, and no failure of the server's."""
    caplog.set_level(logging.INFO, "ampmon_server")
    port, service = served
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(begun(service, method, path) + b"x")
    deadline = time.monotonic() + 10
    while not (lines := [each.getMessage() for each in caplog.records]):
        assert time.monotonic() < deadline
        time.sleep(0.02)

    assert lines == [f"{method} {path}: 400"]


def test_a_head_in_pieces_is_one(port: tuple[int, str]) -> None:
    """Who is quick enough may send a head byte by byte, and ask again on the same connection."""
    with socket.create_connection(("127.0.0.1", port[0]), 10) as connection:
        for _ in range(2):
            for byte in HEAD + b"\r\n":
                connection.sendall(bytes([byte]))
            answer = b""
            while not answer.endswith(b"}"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 401")


REFUSED = b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"


def answer_on(connection: socket.socket) -> bytes:
    """A whole problem document, with its head."""
    answer = b""
    while not answer.endswith(b"}"):
        received = connection.recv(65536)
        assert received
        answer += received
    return answer


def test_a_body_that_was_answered_is_not_waited_for(port: tuple[int, str]) -> None:
    """Who was refused before the body was there, and goes on with it byte by byte, is cut off in its time."""
    with socket.create_connection(("127.0.0.1", port[0]), 10) as connection:
        connection.sendall(REFUSED % 1000)
        assert answer_on(connection).startswith(b"HTTP/1.1 401")
        began = time.monotonic()
        with pytest.raises(ConnectionError):  # noqa: PT012 - whichever byte it is
            for _ in range(200):
                time.sleep(0.05)
                connection.sendall(b"x")

    assert BODY_S / 2 <= time.monotonic() - began < 5


def test_a_body_that_was_answered_may_end(port: tuple[int, str]) -> None:
    """Whoever sends the rest of a body that was refused in its time asks again on the same connection, later."""
    with socket.create_connection(("127.0.0.1", port[0]), 10) as connection:
        for _ in range(3):
            connection.sendall(REFUSED % 10)
            assert answer_on(connection).startswith(b"HTTP/1.1 401")
            time.sleep(BODY_S / 4)
            connection.sendall(b"x" * 10)
            time.sleep(BODY_S)


LIVE = "GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"


SCRIPT = (
    "GET /vendor/plotly.min.js HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"
    "Accept-Encoding: gzip\r\nConnection: {}\r\n\r\n"
)
"""Asks for more than a megabyte in one piece."""


def connected(port: int) -> socket.socket:
    """To somebody who has little room for what is not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", port))
    return connection


def read(connection: socket.socket, pause_s: float) -> tuple[int, int]:
    """Bytes of the body that were announced and that came, read a little at a time."""
    answer, announced = b"", 0
    with contextlib.suppress(ConnectionError):
        while not announced or len(answer) < announced:
            received = connection.recv(32768)
            if not received:
                break
            answer += received
            head, _, body = answer.partition(b"\r\n\r\n")
            if not announced:
                length = head.lower().partition(b"content-length: ")[2]
                announced, answer = int(length.partition(b"\r\n")[0]), body
            time.sleep(pause_s)
    return announced, len(answer)


@pytest.mark.parametrize("then", ["close", "keep-alive"])
def test_who_reads_nothing_is_cut_off(port: tuple[int, str], then: str) -> None:
    """Of an answer of which nothing is read for its time no more is kept, whatever was to become of the connection."""
    with connected(port[0]) as connection:
        connection.sendall(SCRIPT.format(port[1], then).encode())
        time.sleep(3 * UNREAD_S)
        announced, came = read(connection, 0.0)

    assert 0 < came < announced / 2


@pytest.mark.parametrize("then", ["close", "keep-alive"])
def test_who_reads_slowly_gets_it_all(port: tuple[int, str], then: str) -> None:
    """An answer that takes many times as long to read arrives whole, if it is read."""
    began = time.monotonic()
    with connected(port[0]) as connection:
        connection.sendall(SCRIPT.format(port[1], then).encode())
        announced, came = read(connection, 0.005)

    assert came == announced > 1_000_000
    assert time.monotonic() - began > 2 * UNREAD_S


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextlib.contextmanager
def connecting(port: int, authority: Authority | None) -> Iterator[socket.socket]:
    """Such a connection: over TLS where there is an authority to be trusted."""
    with connected(port) as plain:
        if authority is None:
            yield plain
            return
        trusting = ssl.create_default_context(cafile=str(authority.file))
        with trusting.wrap_socket(plain, server_hostname="localhost") as connection:
            yield connection


def certified(settings: Settings, authority: Authority) -> Settings:
    cert, key = authority.issue()
    return replace(settings, tls_cert=cert, tls_key=key)


DAMAGED: dict[str, tuple[str, bytes]] = {
    "after an answer": (HEAD.decode(), b"HTTP/1.1 401"),
    "within an answer": (LIVE, b"HTTP/1.1 200"),
    "before an answer": ("POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\n", b""),
}
"""A head of whose body what follows is no piece, and the answer that is waited for first."""


@pytest.mark.parametrize("when", DAMAGED)
@pytest.mark.parametrize("over_tls", [False, True])
def test_a_body_that_is_none_fails_nothing(
    settings: Settings,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
    when: str,
    over_tls: bool,
) -> None:
    """A damaged body ends the connection and, soon after, its request, and is no line of failure: over TLS too."""
    caplog.set_level(logging.INFO, "ampmon_server")
    head, answer = DAMAGED[when]
    with (
        serving(certified(settings, authority) if over_tls else settings) as (port, service),
        connecting(port, authority if over_tls else None) as connection,
    ):
        head = head.format(service.keys.token)
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        if answer:
            assert connection.recv(65536).startswith(answer)
        connection.sendall(b"no length\r\n")
        with contextlib.suppress(ConnectionError):
            while connection.recv(65536):
                pass
        if not answer:  # nor does anybody wait on for what does not come
            wait_for(lambda: "POST /login: " in caplog.text)
        wait_for(lambda: not service.limits._streams.total())

    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("over_tls", [False, True])
def test_an_event_stream_that_is_not_read_ends(
    settings: Settings, authority: Authority, over_tls: bool
) -> None:
    """A page that hangs gives its place among the streams back, over TLS too."""
    with (
        serving(certified(settings, authority) if over_tls else settings) as (port, service),
        connecting(port, authority if over_tls else None) as connection,
    ):
        connection.sendall(f"{LIVE.format(service.keys.token)}\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        assert service.limits._streams.total() == 1
        began = time.monotonic()
        while service.limits._streams.total() and time.monotonic() - began < 20:
            for _ in range(500):
                service.bus.publish(Advance(uuid4(), 1, 1))
            time.sleep(0.05)

        assert not service.limits._streams.total()


def test_who_reads_nothing_holds_up_no_end(settings: Settings, authority: Authority) -> None:
    """A server ends at once though somebody has an answer over TLS that is not read, and is not kept for another."""
    with contextlib.ExitStack() as client:
        with serving(certified(settings, authority)) as (port, service):
            connection = client.enter_context(connecting(port, authority))
            connection.sendall(SCRIPT.format(service.keys.token, "close").encode())
            assert connection.recv(1024).startswith(b"HTTP/1.1 200")
            time.sleep(UNREAD_S / 2)
            began = time.monotonic()

        assert time.monotonic() - began < 4
