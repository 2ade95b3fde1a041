"""Notifies server processes of new run versions over PostgreSQL's LISTEN and NOTIFY.

A notice holds run ids and versions only. Notices use connections of their own, outside every transaction, and may get
lost: a process that must not miss a change reads the store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError


if TYPE_CHECKING:
    import psycopg

CHANNEL = "ampmon"
INTERVAL_S = 0.1
"""Pause between two notices of a process. Commits that contain a notice wait for each other in PostgreSQL."""
PENDING_MAX = 4096
_PAYLOAD_RUNS = 128
"""Runs in one payload, at most 60 bytes each. PostgreSQL limits a payload to less than 8000 bytes."""
_RETRY_S, _RETRY_MAX_S = 0.5, 30.0
_LOOK_S = 0.5
"""How often a thread that waits for notices checks whether it should stop."""
_CLOSE_S = 1.0
_OUT, _IN = "ampmon-notices-out", "ampmon-notices-in"
_NOT_YET = "not connected yet"

Hear: TypeAlias = Callable[[UUID, int], None]

_log = logging.getLogger(__name__)


class PostgresNotices:
    """Sends and receives notices on two threads, each with its own connection.

    A thread reconnects when its connection is lost, with exponential backoff.
    """

    def __init__(self, database: Engine) -> None:
        self._database = database
        self._pending: dict[UUID, int] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._troubles = dict.fromkeys((_OUT, _IN), _NOT_YET)
        self._threads: list[threading.Thread] = []

    def listen(self, hear: Hear) -> None:
        """Start both threads. A background thread calls ``hear``, also for this process's own notices.

        ``hear`` must not block.
        """
        self._threads = [
            threading.Thread(target=self._keep, args=(work,), name=name, daemon=True)
            for name, work in ((_OUT, self._send), (_IN, lambda line: self._hear(line, hear)))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, run_id: UUID, version: int) -> None:
        """Queue a notice for the other processes. It is sent soon, in a batch with other notices. Does not block."""
        with self._changed:
            if len(self._pending) < PENDING_MAX or run_id in self._pending:
                self._pending[run_id] = max(version, self._pending.get(run_id, 0))
            self._changed.notify_all()

    def close(self) -> None:
        """Send the queued notices, if the database answers, and stop. Blocks for at most `_CLOSE_S`."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    @property
    def trouble(self) -> str | None:
        """Why notices are not sent or received now, or None if they are."""
        return next(iter(self._troubles.values()), None)

    def _keep(self, work: Callable[[psycopg.Connection[Any]], None]) -> None:
        """Run ``work`` on a connection until `close`. Open a new connection when one is lost."""
        import psycopg

        pause = _RETRY_S
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                with self._line() as line:
                    work(line)
            except (SQLAlchemyError, psycopg.Error) as error:
                self._complain(error)
            # A connection that lasted ends the outage: the next one begins with the short pause.
            pause = _RETRY_S if time.monotonic() - began > pause else min(2 * pause, _RETRY_MAX_S)
            self._stopping.wait(pause)

    @contextmanager
    def _line(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection detached from the pool, with autocommit: each statement is a transaction."""
        pooled = self._database.raw_connection()
        # Out of the pool, whose few connections are for transactions: this one stays open for good.
        pooled.detach()
        line: Any = pooled.dbapi_connection
        try:
            line.autocommit = True
            yield line
        finally:
            line.close()

    def _complain(self, error: Exception) -> None:
        who, words = threading.current_thread().name, " ".join(str(error).split())
        if self._troubles.get(who, _NOT_YET) == _NOT_YET:  # log each outage once
            _log.warning(
                "Notices between server processes fail, so pages update a little later: %s", words
            )
        self._troubles[who] = words

    def _send(self, line: psycopg.Connection[Any]) -> None:
        self._troubles.pop(_OUT, None)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._stopping.is_set())
                changes = list(self._pending.items())
            for first in range(0, len(changes), _PAYLOAD_RUNS):
                some = changes[first : first + _PAYLOAD_RUNS]
                payload = " ".join(f"{run_id.hex}:{version}" for run_id, version in some)
                line.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
            with self._changed:
                # A run whose version rose during the sending stays.
                self._pending = dict(self._pending.items() - changes)
            if self._stopping.wait(INTERVAL_S):
                return

    def _hear(self, line: psycopg.Connection[Any], hear: Hear) -> None:
        line.execute(f"LISTEN {CHANNEL}")
        self._troubles.pop(_IN, None)
        while not self._stopping.is_set():
            for notice in line.notifies(timeout=_LOOK_S):
                for run_id, version in _unpack(notice.payload):
                    hear(run_id, version)


def _unpack(payload: str) -> Iterator[tuple[UUID, int]]:
    """Parse a payload. Skip words in another format, because any program can send on the channel."""
    for word in payload.split():
        run_id, _, version = word.partition(":")
        if len(run_id) == 32 and version.isascii() and version.isdigit():
            try:
                yield UUID(hex=run_id), int(version)
            except ValueError:
                return
