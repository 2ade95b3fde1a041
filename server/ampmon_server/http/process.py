"""One server process: uvicorn, which on a signal finishes the requests under way and always exits within a deadline."""

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
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from ampmon_server.http.auth.proxies import Proxies
from ampmon_server.http.connection import HEAD_BYTES_MAX, Connection, WaitingConnections
from ampmon_server.http.problems import problem
from ampmon_server.http.service import Service


KEEP_ALIVE_SECONDS = 5
"""How long an idle connection stays open."""
STOP_SECONDS = 5
"""How long requests under way may take once a server stops; then their connections are aborted."""
END_SECONDS = 9
"""A stopping process that does not exit within this time is killed, for example if a thread waits for a database."""
EXHAUSTION_SECONDS = 60
"""Minimum time between two log lines about connections that have to wait."""
_ENDS = {b"content-length", b"transfer-encoding"}
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_log = logging.getLogger(__name__)


class ServerProcess(uvicorn.Server):
    """Serves the app of an open service. Calls ``ready`` once it listens."""

    def __init__(self, app: FastAPI, ready: Callable[[], None]) -> None:
        service: Service = app.state.service
        settings = service.settings
        super().__init__(
            uvicorn.Config(
                _Bounded(app),
                http=partial(  # type: ignore[arg-type]  # uvicorn only calls it
                    Connection,
                    proxies=Proxies(settings.behind_proxy),
                    settings=settings,
                    crowd=WaitingConnections(),
                ),
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                proxy_headers=False,  # the guard decides which proxies to trust
                log_config=None,  # uvicorn writes to the server's own log
                log_level="error",  # at "warning" it logs every invalid request of a stranger
                access_log=False,  # it would log the codes of one-time links
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
        """Stop gracefully: another process accepts new connections on the same socket. Callable from any thread."""
        self._replaced = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._service.certificate is not None:
            self.config.ssl = self._service.certificate.context
        asyncio.get_running_loop().set_exception_handler(_Exhaustion())
        await super().startup(sockets)
        gc.freeze()  # a full collection over loaded modules would block all responses for 70 ms
        if self.started:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop. uvicorn calls it ten times a second."""
        state = self.server_state
        idle = self._idle.over(state.total_requests, len(state.connections))
        return await super().on_tick(counter) or idle

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Announce the stop; then accept no more connections, end streams, and finish the requests under way."""
        self._service.leaving.set()
        if self._replaced:
            for server in self.servers:
                server.close()
            self._service.bus.close()
            # Aborting a connection while its client sends a request fails that request, so wait until all are closed.
            await self._wait(KEEP_ALIVE_SECONDS, lambda: not self.server_state.connections)
        else:
            # Still accepting: a load balancer needs this time to see that it is not ready.
            await self._wait(self._service.settings.drain_seconds, lambda: False)
            self._service.bus.close()
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._cut)
        await super().shutdown(sockets)

    async def _wait(self, seconds: float, done: Callable[[], bool]) -> None:
        """Wait for ``seconds`` at most, until ``done()`` or another signal."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not done() and not self._hurried:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    def _cut(self) -> None:
        """Abort the connections that are left. Their clients do not read, or have no acknowledgement and can resend."""
        for connection in list(self.server_state.connections):
            transport = connection.transport
            if transport is not None:
                transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A second signal ends the waiting for clients.
        self._hurried = self.should_exit
        if self._end is None:
            seconds = self._service.settings.drain_seconds + END_SECONDS
            # On a thread, because the event loop itself may hang.
            self._end = threading.Timer(seconds, _end_at_once, (seconds,))
            self._end.daemon = True
            self._end.start()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal and return. uvicorn's own version raises the signal again, which skips the cleanup."""
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
    """Detects that nobody used the server for ``seconds`` by ``clock``; never if that is None."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = math.inf if seconds is None else seconds
        self._clock = clock
        self._since_s = clock()
        self._requests = 0

    def over(self, requests: int, connections: int) -> bool:
        """Whether the server is idle. ``requests`` counts those so far, ``connections`` are open, as a page's is."""
        now_s = self._clock()
        if connections or requests != self._requests:
            self._since_s, self._requests = now_s, requests
        return now_s - self._since_s >= self._seconds


class _Exhaustion:
    """An event loop's exception handler that logs the exhaustion of descriptors or memory at most once a minute.

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
                "ampmon serve: cannot accept new connections: %s. Raise the limit on open files (ulimit -n)",
                error.strerror,
            )


@dataclass(frozen=True, slots=True)
class _Bounded:
    """ASGI middleware that rejects an oversized head that arrived at once. h11 rejects one that arrives in pieces.

    It also rejects a request with both Content-Length and Transfer-Encoding. A proxy may go by the other header, and
    take the rest of the body for someone else's request.
    """

    _app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and _head_bytes(scope) > HEAD_BYTES_MAX:
            detail = f"The request line and headers exceed {HEAD_BYTES_MAX // 1024} KiB."
            app = problem(431, detail, headers={"Connection": "close"})
        elif scope["type"] == "http" and {name for name, _ in scope["headers"]} >= _ENDS:
            detail = "A request must not have both Content-Length and Transfer-Encoding."
            app = problem(400, detail, headers={"Connection": "close"})
        await app(scope, receive, send)


def _head_bytes(scope: Scope) -> int:
    """Bytes of the address and the headers. Each header has two bytes after its name and two at its end."""
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + fields


def in_a_terminal() -> bool:
    """Whether a person started this in a terminal, where SIGHUP means that the window was closed."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return any(stream is not None and stream.isatty() for stream in streams)


def _stay(_: int, __: FrameType | None) -> None:
    _log.warning(
        "ampmon serve: a single process cannot replace itself: restart it, or run several with --workers"
    )


def _end_at_once(seconds: float) -> None:
    """End as `kill -9` would. The database rolls back what was not committed, and its sender sends it again."""
    _log.error(
        "ampmon serve: it did not stop within %g s and was killed: unfinished requests were not acknowledged",
        seconds,
    )
    logging.shutdown()
    os._exit(1)
