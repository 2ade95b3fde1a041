"""One server process: uvicorn, which on a signal finishes what was begun, and is gone within its time in any case."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ampmon.transport.proof import PROOF_PATH
from ampmon_server.http.app import create_app
from ampmon_server.http.auth.proxies import Proxies
from ampmon_server.http.connection import HEAD_BYTES_MAX, Connection, Crowd, Timers
from ampmon_server.http.problems import problem
from ampmon_server.http.service import Service


KEEP_ALIVE_SECONDS = 5
"""For so long a connection is kept that nobody uses."""
STOP_SECONDS = 5
"""What was asked for before a server stopped may take so long; then its connections are cut."""
END_SECONDS = 9
"""After so long a process is gone that does not end by itself, as where a thread waits for a database."""
EXHAUSTION_SECONDS = 60
"""The log says at most so often that connections have to wait."""
_ENDS = {b"content-length", b"transfer-encoding"}
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_log = logging.getLogger(__name__)


class ServerProcess(uvicorn.Server):
    """Serves an open service; calls ``ready`` once it does. ``timers`` and ``crowd`` are those of its connections."""

    def __init__(
        self,
        service: Service,
        ready: Callable[[], None] | None = None,
        timers: Timers | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                _Bounded(_Parting(create_app(settings, service), service.leaving)),
                http=partial(  # type: ignore[arg-type]  # it is called, and no more
                    Connection,
                    proxies=Proxies(settings.behind_proxy),
                    settings=settings,
                    crowd=crowd or Crowd(),
                    timers=timers,
                ),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                proxy_headers=False,  # the guard knows whose count
                log_config=None,  # its lines go where the others go
                log_level="error",  # it warns of each request that is none, however many strangers send
                access_log=False,  # it would print the codes of one-time links
                ws="none",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
            )
        )
        self._service = service
        self._ready = ready
        self._replaced = self._hurried = False
        self._idle = Idle(settings.idle_seconds_max)
        self._end: threading.Timer | None = None

    def hand_over(self) -> None:
        """Stop at leisure: another process takes new connections from the same socket. Callable from any thread."""
        self._replaced = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._service.certificate is not None:
            self.config.ssl = self._service.certificate.context
        asyncio.get_running_loop().set_exception_handler(_Exhaustion())
        await super().startup(sockets)
        gc.freeze()  # loaded modules stay: a full collection over them would stop all answers for 70 ms
        if self.started and self._ready is not None:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Whether it is to stop, asked ten times a second."""
        state = self.server_state
        idle = self._idle.over(state.total_requests, len(state.connections))
        return await super().on_tick(counter) or idle

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Say that this server stops; then take no more, end streams, and finish what was begun."""
        self._service.leaving.set()
        if self._replaced:
            for server in self.servers:
                server.close()
            self._service.bus.close()
            # A connection cut while its client sends a request is a failed request: so they end by themselves.
            await self._wait(KEEP_ALIVE_SECONDS, lambda: not self.server_state.connections)
        else:
            await self._wait(self._service.settings.drain_seconds, lambda: False)
            self._service.bus.close()
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._cut)
        await super().shutdown(sockets)

    async def _wait(self, seconds: float, done: Callable[[], bool]) -> None:
        """For so long, or until it is done or another signal comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not done() and not self._hurried:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _cut(self) -> None:
        """Cut off who does not read, and who would be answered too late: nothing of theirs was acknowledged."""
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._hurried = self.should_exit
        if self._end is None:
            seconds = self._service.settings.drain_seconds + END_SECONDS
            self._end = threading.Timer(seconds, _end_at_once, (seconds,))
            self._end.daemon = True
            self._end.start()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal and return; uvicorn's own would raise it again, past all tidying up."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        if sys.platform != "win32" and not in_a_terminal():
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _stay)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Idle:
    """Notices when nobody has asked for ``seconds``, by ``clock``; never where that is None."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._clock = clock
        self._since_s = clock()
        self._requests = 0

    def over(self, requests: int, connections: int) -> bool:
        """Given the requests answered so far, and the connections that are open, as a page's is."""
        now_s = self._clock()
        if connections or requests != self._requests:
            self._since_s, self._requests = now_s, requests
        return now_s - self._since_s >= self._seconds


class _Exhaustion:
    """An event loop's exception handler that logs the exhaustion of descriptors or memory once in a while.

    asyncio reports it for each place in the queue of connections, thousands of times a second.
    """

    def __init__(self) -> None:
        self._quiet_until = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _EXHAUSTED:
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + EXHAUSTION_SECONDS
            _log.error(
                "ampmon serve: new connections have to wait: %s. Raise the limit on open files (ulimit -n)",
                error.strerror,
            )


class _Bounded:
    """ASGI middleware: rejects a head that is too large and arrived at once. Of others h11 stops the reading.

    It also rejects a body with two ends, of which a proxy may see the other, and take the rest for another's request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and _head_bytes(scope) > HEAD_BYTES_MAX:
            detail = f"A request's line and headers are at most {HEAD_BYTES_MAX // 1024} KiB."
            app = problem(431, detail, headers={"Connection": "close"})
        elif scope["type"] == "http" and {name for name, _ in scope["headers"]} >= _ENDS:
            detail = "A body has a Content-Length or a Transfer-Encoding, and not both."
            app = problem(400, detail, headers={"Connection": "close"})
        await app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    """Of the address and the headers, each of which has two bytes between name and value and two at its end."""
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + fields


class _Parting:
    """ASGI middleware: once a server leaves, its answers ask for a new connection, which leads to another."""

    def __init__(self, app: ASGIApp, leaving: threading.Event) -> None:
        self._app = app
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            # A proof is of its connection: the request that follows it there is the one to close it.
            proof = scope.get("path", "").endswith(PROOF_PATH)
            if message["type"] == "http.response.start" and self._leaving.is_set() and not proof:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, receive, sent)


def in_a_terminal() -> bool:
    """Whether a person started this, and SIGHUP means that their window was closed."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return any(stream is not None and stream.isatty() for stream in streams)


def _stay(_: int, __: FrameType | None) -> None:
    _log.warning(
        "ampmon serve: one process cannot replace itself: start it anew, or have several, --workers"
    )


def _end_at_once(seconds: float) -> None:
    """End as `kill -9` would: the database undoes what was not committed, and its sender sends it again."""
    _log.error(
        "ampmon serve: it could not stop within %g s, and was ended: what was under way was not acknowledged",
        seconds,
    )
    logging.shutdown()
    os._exit(1)
