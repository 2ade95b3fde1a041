"""The real server process in a thread, with timeouts that expire when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ampmon_server.http.app import create_app
from ampmon_server.http.process import ServerProcess
from ampmon_server.http.service import Service
from ampmon_server.settings import Settings
from certificates import Authority
from waiting import DEADLINE_S


BUFFER_BYTES = 4096
"""The requested size of the system's buffers for an unread answer, on either side."""


class Timers:
    """A server's timeouts, which expire when a test says so."""

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
        """The names of the pending callbacks."""
        return [
            call.__self__._then.__name__
            for timer, call in list(self._pending.items())
            if not timer.cancelled()
        ]  # type: ignore[attr-defined]

    def run_out(self) -> None:
        """Let all timeouts expire."""
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
    port: int
    service: Service
    process: ServerProcess
    timers: Timers

    @property
    def connections(self) -> int:
        return len(self.process.server_state.connections)


@contextlib.contextmanager
def serving(settings: Settings) -> Iterator[Served]:
    service, timers = Service(settings), Timers()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ready = threading.Event()
        process = ServerProcess(create_app(settings, service), ready=ready.set)
        connection: Any = process.config.http
        process.config.http = partial(connection, later=timers.call_later)  # type: ignore[assignment]
        thread = threading.Thread(target=process.run, args=([listener],), daemon=True)
        thread.start()
        assert ready.wait(DEADLINE_S)
        yield Served(listener.getsockname()[1], service, process, timers)
        process.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    service.close()


def connected(port: int) -> socket.socket:
    """A connection with a small buffer for unread data."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    connection.settimeout(DEADLINE_S)
    connection.connect(("127.0.0.1", port))
    return connection


@contextlib.contextmanager
def connecting(port: int, authority: Authority | None) -> Iterator[socket.socket]:
    """A connection like `connected`, over TLS if there is an authority to trust."""
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
