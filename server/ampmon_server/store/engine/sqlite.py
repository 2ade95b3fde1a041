"""Adapts SQLite to the store: one file, one writer at a time, and commits that survive a power cut."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeAlias

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from ampmon.system import private
from ampmon_server.store.engine.errors import Unusable


OLDEST = 3, 33
"""The oldest one that the tests ran on. Before 3.32, a statement takes 999 parameters: fewer than a batch may need."""

BUSY_TIMEOUT_MS = 5000
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # A commit is on disk before it is acknowledged. The sender then deletes its own copy, and the power may fail.
    "PRAGMA synchronous = FULL",
    # SQLite checks them only on request, for each connection: a row without a run is an error.
    "PRAGMA foreign_keys = ON",
    # What savepoints may undo stays in memory. By default it is written to a file in /var/tmp.
    "PRAGMA temp_store = MEMORY",
    # 4 MB for each connection: with larger caches a server's memory grew for hours.
    "PRAGMA cache_size = -4096",
    # While another program reads, the log grows. Once that has ended, it is cut to 16 MiB again.
    "PRAGMA journal_size_limit = 16777216",
)

_FIRST = "PRAGMA auto_vacuum = INCREMENTAL"
"""Set on a new, empty file, so that free pages can be cut off its end later. On a file with content, the pragma would
wait for a writer."""

ERRORS = sqlite3.Error, UnicodeDecodeError
"""What the driver raises. The second is for a message of SQLite that quotes damaged bytes of the schema."""

_Identity: TypeAlias = tuple[int, int]
"""Device and inode of a file."""

READS: dict[str, Any] = {}
WRITES: dict[str, Any] = {"writes": True}
"""Connection options. A write takes its lock at the start: a read that turns into a write cannot wait for it."""


def open_engine(url: URL) -> Engine:
    """Create an engine for the file at ``url`` without touching it.

    Raises Unusable for a database in memory, and if SQLite is too old.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        raise Unusable(
            f"SQLite {sqlite3.sqlite_version} of this Python is too old: run the server with a Python whose SQLite is "
            f"{OLDEST[0]}.{OLDEST[1]} or newer, or pass a PostgreSQL --database-url"
        )
    if url.database in {None, "", ":memory:"}:
        raise Unusable("--database-url: name a file; a database in memory has one connection only")
    file = _File(url.database)
    # Last in, first out: the connection with the warmest cache is used first.
    engine = create_engine(
        url, pool_size=8, max_overflow=32, pool_use_lifo=True, hide_parameters=True
    )
    engine.update_execution_options(file=file)
    # Before each connection: without the file, SQLite would create an empty one.
    event.listen(engine, "do_connect", file.check)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "connect", file.opened)
    event.listen(engine, "close", file.closed)
    event.listen(engine, "begin", _begin)
    return engine


class _File:
    """Remembers which file and which log (-wal) an engine uses, and detects when one is removed or replaced.

    SQLite would not notice. It would write to files that nothing opens again, or read one log by the index of another.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is: _Identity | None = None
        self._log: _Identity | None = None
        self._open: set[int] = set()
        """The open connections. With the last one, SQLite deletes the log."""

    def opened(self, connection: Any, _: ConnectionPoolEntry) -> None:
        """Record the file's identity on the first connection, which creates the file."""
        self._open.add(id(connection))
        self._is = self._is or _found(self._path)

    def closed(self, connection: Any, _: ConnectionPoolEntry) -> None:
        self._open.discard(id(connection))
        if not self._open:
            self._log = None

    def check(self, *_: object) -> None:
        """Raise OperationalError if the file or its log was removed or replaced, because writes to it would be lost."""
        if self._is is not None and _found(self._path) != self._is:
            raise sqlite3.OperationalError(
                "its file was removed or replaced while the server ran; put it back, or restart the server"
            )
        log = _found(f"{self._path}-wal")
        if self._log is not None and log != self._log:
            # The last connection to be closed still has the log, and moves it into the file.
            raise sqlite3.OperationalError(
                "its log was removed or replaced while the server ran; restart the server"
            )
        self._log = log if self._open else None


def _found(path: str) -> _Identity | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def confirm(engine: Engine) -> None:
    """Raise OperationalError if the open database file or its log was removed or replaced."""
    engine.get_execution_options()["file"].check()


def is_conflict(error: BaseException) -> bool:
    """Whether another connection held a lock for longer than the busy timeout."""
    return "is locked" in str(error)


def is_damage(error: BaseException) -> bool:
    """Whether the file is damaged."""
    words = "malformed", "is not a database", "decode to UTF-8"
    return isinstance(error, UnicodeDecodeError) or any(each in str(error) for each in words)


def _prepare(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver would send BEGIN late, and never for reads
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    first = () if pages else (_FIRST,)
    # The timeout first: the change to WAL needs a lock that another process may hold.
    for pragma in (f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}", *first, *_PRAGMAS):
        connection.execute(pragma)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def lock(path: Path) -> IO[bytes]:
    """Lock the file at ``path``, creating it if needed. Raises Unusable at once if another process holds the lock.

    Closing the file releases the lock, and so does any end of the process. The file holds the process's id.
    """
    try:
        handle = os.fdopen(private.open_file(path, os.O_RDWR | os.O_CREAT), "r+b", buffering=0)
    except OSError as error:
        raise Unusable(
            f"{path.parent} cannot be used ({error.strerror}): pass another --data-dir"
        ) from None
    try:
        _lock(handle)
    except OSError:
        by = ""
        # Windows lets nobody read what is locked, and on a full disk the holder wrote nothing.
        with handle, suppress(OSError, ValueError):
            by = f" (process {int(handle.read())})"
        raise Unusable(
            f"Another ampmon serve{by} uses {path.parent}: stop it, or pass another --data-dir"
        ) from None
    with suppress(OSError):  # without free space
        handle.truncate()
        handle.write(b"%d" % os.getpid())
    return handle


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: IO[bytes]) -> None:
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: IO[bytes]) -> None:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
