"""What the other side of a connection may take its time over: a head, a body, the rest of one, reading an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from ampmon_server import process as server_process
from ampmon_server.app import create_app
from ampmon_server.bus import Advance
from ampmon_server.process import Process
from ampmon_server.service import Service
from ampmon_server.settings import Settings
from ampmon_server.store import Sender
from batches import Trainer
from certificates import Authority
from waiting import DEADLINE_S, wait_for


BODY_S = 0.2
"""How long a body may take that never arrives whole."""
BUFFER_BYTES = 4096
"""What the system is asked to hold of an answer that is not read, on either side."""


class Timers:
    """A server's timeouts, which pass when a test says so and not by the clock."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.Future[None], Callable[[], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def call_later(self, _: float, callback: Callable[[], None]) -> asyncio.Future[None]:
        self._loop = asyncio.get_running_loop()
        timer = self._loop.create_future()
        self._pending[timer] = callback
        return timer

    @property
    def pending(self) -> list[str]:
        """What would be called now, by its name."""
        return [
            call.__self__._then.__name__
            for timer, call in list(self._pending.items())
            if not timer.cancelled()
        ]  # type: ignore[attr-defined]

    def run_out(self) -> None:
        """Let the time of all of them pass."""
        over = threading.Event()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._run_out, over)
            assert over.wait(DEADLINE_S)

    def _run_out(self, over: threading.Event) -> None:
        pending, self._pending = self._pending, {}
        for timer, callback in pending.items():
            if not timer.cancelled():
                callback()
        over.set()


@dataclass
class Served:
    """A server process in a thread."""

    port: int
    service: Service
    process: Process
    timers: Timers

    @property
    def connections(self) -> int:
        return len(self.process.server_state.connections)


@contextlib.contextmanager
def serving(settings: Settings) -> Iterator[Served]:
    service, timers = Service.open(settings), Timers()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ready = threading.Event()
        process = Process(service, ready=ready.set, timers=timers)
        thread = threading.Thread(target=process.run, args=([listener],), daemon=True)
        thread.start()
        assert ready.wait(DEADLINE_S)
        yield Served(listener.getsockname()[1], service, process, timers)
        process.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    service.close()


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    with serving(settings) as server:
        yield server


def said(port: int, pieces: Iterator[bytes]) -> str:
    """The first line of the answer to these pieces, "" for a connection that ended without one."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
                if select.select([connection], [], [], 0)[0]:
                    break
        try:
            answer = connection.recv(65536)
        except ConnectionError:
            answer = b""
    return answer.partition(b"\r\n")[0].decode()


HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FLOODS: dict[str, Callable[[], Iterator[bytes]]] = {
    "many headers": lambda: (HEAD + b"".join(b"X-%d: y\r\n" % n for n in range(10_000)),),
    "one huge header": lambda: (HEAD, *[b"X: " + b"y" * 65_536] * 64, b"\r\n\r\n"),
    "a huge line": lambda: (b"GET /" + b"y" * 2**20,),
    "headers without an end": lambda: (HEAD, *[b"X: y\r\n" * 1000] * 1000),
}
SLOW = {"nothing": b"", "a slow header": HEAD + b"X: y\r\n", "a slow line": b"GET /y"}


@pytest.mark.parametrize("how", FLOODS)
def test_a_head_is_so_large_and_no_more(served: Served, how: str) -> None:
    """Too many headers, or one too long, end in a 400 or the end of the connection, and others are served."""
    line = said(served.port, iter(FLOODS[how]()))

    assert line in {"", "HTTP/1.1 400 Bad Request"}
    assert said(served.port, iter([HEAD + b"\r\n"])) == "HTTP/1.1 401 Unauthorized"


@pytest.mark.parametrize("how", SLOW)
def test_a_head_is_waited_for_so_long(served: Served, how: str) -> None:
    """A head that does not arrive in its time ends in a 400 or the end of the connection, and others are served."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        connection.sendall(SLOW[how])
        wait_for(lambda: served.timers.pending)
        wait_for(lambda: served.timers.run_out() or not served.connections)
        assert connection.recv(65536).partition(b"\r\n")[0] in {b"", b"HTTP/1.1 400 Bad Request"}

    assert said(served.port, iter([HEAD + b"\r\n"])) == "HTTP/1.1 401 Unauthorized"


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
def test_a_slow_body_is_sent_away(settings: Settings, method: str, path: str) -> None:
    """A body that does not arrive in its time is answered 408, as the document of the routes says."""
    with serving(replace(settings, body_seconds_max=BODY_S)) as served:
        line = said(served.port, iter([begun(served.service, method, path), b"x"]))

    assert line == "HTTP/1.1 408 Request Timeout"
    operation = create_app(settings).openapi()["paths"][path][method.lower()]
    assert "408" in operation["responses"]


@pytest.mark.parametrize(("method", "path"), TAKEN)
def test_a_body_whose_sender_is_gone_fails_nothing(
    served: Served, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    """Who goes away within a body is a line of the log, and no failure of the server's."""
    caplog.set_level(logging.INFO, "ampmon_server")
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        connection.sendall(begun(served.service, method, path) + b"x")

    assert wait_for(lambda: [each.getMessage() for each in caplog.records]) == [
        f"{method} {path}: 400"
    ]


def test_a_head_in_pieces_is_one(served: Served) -> None:
    """Who is quick enough may send a head byte by byte, and ask again on the same connection."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        for _ in range(2):
            for byte in HEAD + b"\r\n":
                connection.sendall(bytes([byte]))
            assert answer_on(connection).startswith(b"HTTP/1.1 401")


REFUSED = b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n"


def answer_on(connection: socket.socket) -> bytes:
    """A whole problem document, with its head."""
    answer = b""
    while not answer.endswith(b"}"):
        received = connection.recv(65536)
        assert received
        answer += received
    return answer


def test_a_body_that_was_answered_is_not_waited_for(served: Served) -> None:
    """Who was refused before the body was there, and goes on with it byte by byte, is cut off in its time."""
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
    """Whoever sends the rest of a body that was refused in its time asks again on the same connection, later."""
    with socket.create_connection(("127.0.0.1", served.port), DEADLINE_S) as connection:
        for _ in range(3):
            connection.sendall(REFUSED % 10)
            assert answer_on(connection).startswith(b"HTTP/1.1 401")
            wait_for(lambda: served.timers.pending == ["_abort"])
            connection.sendall(b"x" * 10)
            wait_for(lambda: "_abort" not in served.timers.pending)


LIVE = "GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"


ASK = (
    "GET /api/v1/runs/{} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {}\r\n"
    "Connection: {}\r\n\r\n"
)


def connected(port: int) -> socket.socket:
    """A connection of somebody who has little room for what is not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.settimeout(DEADLINE_S)
    connection.connect(("127.0.0.1", port))
    return connection


def held_by_the_system() -> int:
    """More bytes than the system holds of an answer that is not read: what it grants, or takes, whichever is more."""
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
    """Ask for an answer of so many bytes, and wait until the server holds what the system does not take of it."""
    run_id = large(served.service, size)
    connection.sendall(ASK.format(run_id, served.service.keys.token, then).encode())
    wait_for(lambda: "_abort_unless_read" in served.timers.pending)


def read(connection: socket.socket, each: int, between: Callable[[], object]) -> tuple[int, int]:
    """Bytes of the body that were announced and that came; ``between`` is called after every ``each`` bytes."""
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
    """Of an answer of which nothing is read for its time no more is kept, whatever was to become of the connection."""
    held = held_by_the_system()
    with connected(served.port) as connection:
        asked(served, connection, then, 4 * held)
        wait_for(lambda: served.timers.run_out() or not served.connections)
        announced, came = read(connection, held, lambda: None)

    assert 0 < came < announced / 2


@pytest.mark.parametrize("then", ["close", "keep-alive"])
def test_who_reads_slowly_gets_it_all(served: Served, then: str) -> None:
    """An answer that takes many times as long to read arrives whole, if it is read."""
    passed = []

    def wait() -> None:
        passed.append("_abort_unless_read" in served.timers.pending)
        served.timers.run_out()

    held = held_by_the_system()
    with connected(served.port) as connection:
        asked(served, connection, then, 10 * held)
        # After more than the system can hold was read, some of what the server holds was read too.
        announced, came = read(connection, held, wait)

    assert came == announced > 10 * held
    assert passed.count(True) > 5


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
        if not answer:  # nor does anybody wait on for what does not come
            wait_for(lambda: "POST /login: " in caplog.text)
        wait_for(lambda: not served.service.limits._streams.total())

    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("over_tls", [False, True])
def test_an_event_stream_that_is_not_read_ends(
    settings: Settings, authority: Authority, over_tls: bool
) -> None:
    """A page that hangs gives its place among the streams back, over TLS too."""
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
    """A server ends at once though somebody has an answer over TLS that is not read, and is not kept for another."""
    monkeypatch.setattr(server_process, "STOP_SECONDS", 10 * DEADLINE_S)  # it would cut them off
    with contextlib.ExitStack() as client, serving(certified(settings, authority)) as served:
        connection = client.enter_context(connecting(served.port, authority))
        asked(served, connection, "close", 4 * held_by_the_system())
        (kept,) = served.process.server_state.connections
        wait_for(kept.transport.is_closing)
