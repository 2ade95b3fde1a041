"""A client connection of uvicorn: which clients may connect, how many at once, and how long they may take."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from ampmon_server.http.auth.proxies import Proxies
from ampmon_server.settings import Settings


LIMIT_MAX = 65_536
"""The highest limit to set, and the assumed limit of systems without one."""
RESERVED = 128
"""Descriptors that are kept free for the database, the log and files."""


def raise_limit() -> None:
    """Raise this process's soft limit to its hard limit, at most `LIMIT_MAX`. Child processes inherit it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max() -> int:
    """How many connections may be open under the current limit."""
    if sys.platform == "win32":
        return LIMIT_MAX
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    return limit - min(RESERVED, limit // 4)


HEAD_BYTES_MAX = 64 * 1024
"""Maximum size of a request's line and headers. Beyond it the answer is 400, or 431 if all arrived at once."""
PACE_BYTES = 16 * 1024
"""A client must read this much of an answer, or all that is left, within `Settings.unread_seconds_max`."""
WAITING_MAX = 4096
"""Maximum connections of a process that wait for their clients. Each may hold a head's bytes in memory."""


Later: TypeAlias = Callable[[float, Callable[[], None]], Any]
"""Calls a function after some seconds, unless the result's `cancel` is called before. An event loop's `call_later`."""


class WaitingConnections:
    """The connections of a process that wait for their clients, oldest first. Aborts the oldest if there are too many.

    At most `WAITING_MAX` may wait. File descriptors limit all connections of the process together.
    """

    def __init__(self) -> None:
        self._waiting: dict[Connection, None] = {}

    def note(self, connection: Connection, *, waiting: bool) -> None:
        """Record whether a connection waits: for a head, for a body, or for its client to read a response."""
        if waiting:
            self._waiting.setdefault(connection)
        else:
            self._waiting.pop(connection, None)

    def make_room(self, connections: int) -> None:
        """Abort the longest-waiting connections while too many wait, or ``connections`` exceed the descriptor limit."""
        most = connections_max()
        while self._waiting and (len(self._waiting) > WAITING_MAX or connections > most):
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
            connections -= 1


class Connection(H11Protocol):
    """Closes at once if ``proxies`` do not admit the client, and after a timeout if the client is too slow.

    uvicorn itself has no timeout for a head, for the rest of a body that was answered early, or for a response that the
    client hardly reads. Tests pass ``later`` to move time by hand.
    """

    def __init__(
        self,
        *given: Any,
        proxies: Proxies,
        settings: Settings,
        crowd: WaitingConnections,
        later: Later | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self._proxies = proxies
        self._crowd = crowd
        self._begun = False
        later = later or self.loop.call_later
        self._head = _Deadline(later, settings.head_seconds_max, self._lose_patience)
        self._rest = _Deadline(later, settings.body_seconds_max, self._abort)
        self._reading = _Deadline(later, settings.unread_seconds_max, self._abort_unless_read)
        self._unread = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = get_remote_addr(transport)
        if not self._proxies.admits(None if peer is None else peer[0]):
            transport.abort()  # before reading any byte of theirs
            return
        super().connection_made(transport)
        transport.set_write_buffer_limits(1)  # so that one unread byte calls pause_writing
        self._head.begin()
        self._note_whether_it_waits()
        self._crowd.make_room(len(self.connections))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._begun = self.conn.their_state is h11.IDLE
        if self._begun:
            self._head.begin()
        else:
            self._head.end()
        self._wait_for_the_rest()
        self._note_whether_it_waits()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_the_rest()
        self._note_whether_it_waits()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        elif not self.transport.is_closing():  # a response has begun, and a second one would fail
            self.transport.close()
        if self.cycle is not None and not self.cycle.response_complete:
            # Stop the application now: over TLS, connection_lost may come half a minute later.
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = math.inf
        self._reading.begin()
        self._note_whether_it_waits()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reading.end()
        self._note_whether_it_waits()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._head, self._rest, self._reading):
            deadline.end()
        # uvicorn does not know a client that was rejected at once.
        if self.transport is not None:
            super().connection_lost(exc)
        self._crowd.note(self, waiting=False)

    def shutdown(self) -> None:
        # asyncio cannot abort a TLS transport that was closed twice.
        if not self.transport.is_closing():
            super().shutdown()
        if self.transport.is_closing() and self.scheme == "https":
            self.transport.abort()  # no request is under way, and TLS would wait for its closing handshake

    def _note_whether_it_waits(self) -> None:
        incomplete = self.conn.their_state in {h11.IDLE, h11.SEND_BODY}
        self._crowd.note(self, waiting=incomplete or self.flow.write_paused)

    def _wait_for_the_rest(self) -> None:
        """Start the timeout of a body that was answered early. Between requests, uvicorn has its own timeout."""
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            self._rest.begin()
        else:
            self._rest.end()

    def _lose_patience(self) -> None:
        if self.transport.is_closing() or self.conn.our_state is not h11.IDLE:
            return
        if self._begun:
            self.send_400_response("The request did not arrive in time.")
        else:
            self.transport.close()

    def _abort_unless_read(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left > self._unread - PACE_BYTES:
            self._abort()
        else:  # the client reads, if slowly
            self._unread = left
            self._reading.begin()

    def _abort(self) -> None:
        self.transport.abort()


class _Deadline:
    """Calls ``then`` after ``seconds``, unless it ends before. To begin again while it runs changes nothing."""

    def __init__(self, later: Later, seconds: float, then: Callable[[], None]) -> None:
        self._later, self._seconds, self._then = later, seconds, then
        self._timer: Any = None

    def begin(self) -> None:
        if self._timer is None:
            self._timer = self._later(self._seconds, self._over)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._then()
