"""A TCP proxy in front of a real server that loses, repeats, delays and cuts requests and answers, by plan.

    with Proxy(server.port, chances={"lose_ack": 0.2, "repeat": 0.1}, seed=7) as proxy:
        proxy.next("hang", "cut_request")       # the next two requests, whatever the chances
        ...                                     # a sender that posts to proxy.url
        proxy.calm()                            # from here on everything passes
        assert proxy.lost_acks > 0

The server may be killed and restarted on its port meanwhile: the proxy cuts off a request that finds no server.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias, get_args


Fault: TypeAlias = Literal[
    "pass",
    "delay",  # passes after `delay_s`
    "drop",  # the proxy reads the request and closes the connection; the server sees nothing of it
    "reset",  # the same, with an RST
    "hang",  # the proxy reads the request and never answers; the connection stays open
    "cut_request",  # the server gets the start of the request, then the connection closes
    "repeat",  # the server gets the request twice in a row
    "echo",  # passes; the server gets it again after `delay_s`, behind later requests
    "lose_ack",  # the server answers; the connection closes without the answer
    "withhold",  # the server answers; the client gets nothing, and the connection stays open
    "cut_answer",  # the client gets the start of the answer, then the connection closes
    "trickle",  # the client gets the answer byte by byte, one every `trickle_s`
    "hang_up",  # passes, then the kept connection closes
    "error",  # 500 from the proxy itself, as are the following
    "busy",  # 503 with a Retry-After of `retry_after`
    "garbage",  # bytes that are not HTTP
    "nonsense",  # a 200 that is not from an ampmon server
    "redirect",  # 307 to `elsewhere`
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
_PROOF = b"GET /api/v1/proof"
"""The request that a client sends first on each new connection. It meets no fault."""
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: drop unsent data and send an RST
_SERVER_S = 30.0


class Proxy:
    """Listens on a free port of the loopback interface and passes HTTP requests on to ``upstream``.

    A request meets the next fault queued by `next`, else one drawn with ``chances`` (shares of all requests, by name)
    from a generator of this ``seed``, else none. ``counts`` has the number of requests by fault; "away" are those that
    found no server. Requests and answers must have a Content-Length. Thread-safe.
    """

    def __init__(
        self,
        upstream: int,
        *,
        chances: Mapping[Fault, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.upstream = upstream
        self.chances: Mapping[Fault, float] = dict(chances or {})
        self.delay_s = 0.05
        self.trickle_s = 0.01
        self.retry_after = "0"
        self.elsewhere = "http://127.0.0.1:9/"
        self.counts: Counter[str] = Counter()
        self.lost_acks = 0
        """Requests that the server answered with 200 although the client got no answer."""
        self.repeated = 0
        """Requests that the server answered with 200 more than once."""
        self._queue: deque[Fault] = deque()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start(self._accept)

    def next(self, *faults: Fault) -> None:
        """Queue faults for the next requests, one each, in order."""
        with self._lock:
            self._queue.extend(faults)

    def calm(self) -> None:
        """Let everything pass from now on."""
        with self._lock:
            self._queue.clear()
            self.chances = {}

    def close(self) -> None:
        """End all connections, accept no more, and wait for those under way."""
        self._ended.set()
        _shut(self._listener)
        with self._lock:
            open_now = list(self._open)
        for each in open_now:
            _shut(each)
        for thread in list(self._threads):
            thread.join()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- connections ----------------------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._listener.accept()
                self._start(self._serve, client)
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        try:
            while not self._ended.is_set():
                request = _message(client)
                if request is None or not self._pass(client, request):
                    break
        except OSError:
            pass  # the client has gone, or the proxy has ended
        finally:
            with self._lock:
                self._open.discard(client)
            client.close()

    def _pass(self, client: socket.socket, request: bytes) -> bool:
        """Handle one request. Return whether the connection is kept."""
        try:
            if request.startswith(_PROOF):
                client.sendall(self._ask(request))
                return True
            return self._meet(self._draw(), client, request)
        except _Away:
            self._count("away")
            return False

    def _draw(self) -> Fault:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            names = list(self.chances)
            at = self._random.random()
            for name in names:
                at -= self.chances[name]
                if at < 0:
                    return name
            return "pass"

    def _count(self, name: str, *, lost_ack: bool = False) -> None:
        with self._lock:
            self.counts[name] += 1
            self.lost_acks += lost_ack

    # -- faults ---------------------------------------------------------------------------------------------------

    def _meet(self, fault: Fault, client: socket.socket, request: bytes) -> bool:
        if (own := self._own_answer(fault)) is not None:
            self._count(fault)
            client.sendall(own)
            return fault != "garbage"
        if fault in ("drop", "reset", "hang", "cut_request"):
            return self._keep_from_server(fault, client, request)
        if fault == "delay":
            self._ended.wait(self.delay_s)
        answer = self._ask(request)
        if fault in ("lose_ack", "withhold", "cut_answer"):
            return self._keep_from_client(fault, client, answer)
        if fault == "repeat":
            self._ask_again(request, answer)
        self._count(fault)
        pieces = len(answer) if fault == "trickle" else 1
        for place in range(pieces):
            client.sendall(answer[place : place + 1] if pieces > 1 else answer)
            self._ended.wait(self.trickle_s if pieces > 1 else 0)
        if fault == "echo":
            self._start(self._echo, request, answer)
        return fault != "hang_up"

    def _own_answer(self, fault: Fault) -> bytes | None:
        if fault == "redirect":
            return _answer("307 Temporary Redirect", f"Location: {self.elsewhere}\r\n")
        if fault == "busy":
            return _answer("503 Service Unavailable", f"Retry-After: {self.retry_after}\r\n")
        return _OWN_ANSWERS.get(fault)

    def _keep_from_server(self, fault: Fault, client: socket.socket, request: bytes) -> bool:
        if fault == "cut_request":
            with self._lock:
                length = self._random.randrange(1, len(request))
            with self._server() as server:
                server.sendall(request[:length])
        self._count(fault)
        if fault == "hang":
            self._wait_for_end(client)
        elif fault == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        return False

    def _keep_from_client(self, fault: Fault, client: socket.socket, answer: bytes) -> bool:
        self._count(fault, lost_ack=_accepted(answer))
        if fault == "cut_answer":
            with self._lock:
                length = self._random.randrange(1, len(answer))
            client.sendall(answer[:length])
        elif fault == "withhold":
            self._wait_for_end(client)
        return False

    def _ask_again(self, request: bytes, answer: bytes) -> None:
        with contextlib.suppress(_Away):
            if _accepted(self._ask(request)) and _accepted(answer):
                with self._lock:
                    self.repeated += 1

    def _echo(self, request: bytes, answer: bytes) -> None:
        self._ended.wait(self.delay_s)
        self._ask_again(request, answer)

    def _wait_for_end(self, client: socket.socket) -> None:
        """Wait until the client closes the connection."""
        while client.recv(2**16):
            pass

    def _ask(self, request: bytes) -> bytes:
        """The server's whole answer. Raises _Away if there is none."""
        try:
            with self._server() as server:
                server.sendall(request)
                answer = _message(server)
        except OSError:
            answer = None
        if answer is None:
            raise _Away
        return answer

    @contextlib.contextmanager
    def _server(self) -> Iterator[socket.socket]:
        # A new connection each time: the server could close a kept one just as it is used again.
        try:
            server = socket.create_connection(("127.0.0.1", self.upstream), _SERVER_S)
        except OSError:
            raise _Away from None
        with server:
            yield server


class _Away(Exception):
    """The server does not answer."""


def _answer(status: str, headers: str = "", body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


_OWN_ANSWERS: Mapping[str, bytes] = {
    "error": _answer("500 Internal Server Error"),
    "garbage": b"\x15\x03\x01\x00\x02\x02\x16" * 40,
    "nonsense": _answer("200 OK", "Content-Type: text/html\r\n", b"<h1>Welcome to our hotel</h1>"),
}


def _message(connection: socket.socket) -> bytes | None:
    """The next whole request or answer; None if the connection ends first."""
    message = b""
    while b"\r\n\r\n" not in message:
        if not (received := connection.recv(2**16)):
            return None
        message += received
    head, _, body = message.partition(b"\r\n\r\n")
    missing = _content_length(head) - len(body)
    parts = [message]
    while missing > 0:
        if not (received := connection.recv(min(missing, 2**18))):
            return None
        parts.append(received)
        missing -= len(received)
    return b"".join(parts)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _accepted(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200")


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
