"""SQLite as the store needs it: one file, one writer at a time, and a commit that outlives a power cut."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import IO, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from ampmon.system import private
from ampmon_server.store.engine.errors import Unusable


BUSY_TIMEOUT_MS = 5000
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # A commit is on the disk before it is acknowledged: the sender then lets go of its own copy, and power may fail.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -4096",
)

_FIRST = "PRAGMA auto_vacuum = INCREMENTAL"
"""Of a new file, before anything is written: what is free can be cut off its end by and by. Said to a file with
something in it, it would wait for whoever writes there."""

READS: dict[str, Any] = {}
WRITES: dict[str, Any] = {"writes": True}
"""Options of connections: a write takes its lock at the start, for a read that turns to writing cannot wait."""


def open_engine(url: URL) -> Engine:
    """An engine for the file at ``url``; touches nothing. Raises Unusable for a database in memory."""
    if url.database in {None, "", ":memory:"}:
        raise Unusable("--database-url: name a file; a database in memory has one connection only")
    file = _File(url.database)
    engine = create_engine(
        url, pool_size=8, max_overflow=32, pool_use_lifo=True, hide_parameters=True
    )
    engine.update_execution_options(file=file)
    event.listen(engine, "do_connect", file.check)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "connect", file.opened)
    event.listen(engine, "begin", _begin)
    return engine


class _File:
    """The file that an engine opened first, for as long as its name leads to it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is: tuple[int, int] | None = None

    def opened(self, *_: object) -> None:
        """Note which file it is, once it is there."""
        self._is = self._is or self._found()

    def check(self, *_: object) -> None:
        """Raise OperationalError where the file was removed, or another has its name: what is in it will be gone."""
        if self._is is not None and self._found() != self._is:
            raise sqlite3.OperationalError(
                "its file was removed or replaced while the server ran; put it back, or restart the server"
            )

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def confirm(engine: Engine) -> None:
    """Raise OperationalError where the file that the engine has open is not the database any more."""
    engine.get_execution_options()["file"].check()


def is_conflict(error: BaseException) -> bool:
    """Whether another connection held a lock that this one did not wait out."""
    return "is locked" in str(error)


def is_unavailable(error: BaseException) -> bool:
    """Whether the database cannot be used, and says so in a way of its own: its file is damaged."""
    return "malformed" in str(error) or "is not a database" in str(error)


def _prepare(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver's own BEGIN would come late, and never for reads
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    first = () if pages else (_FIRST,)
    for pragma in (f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}", *first, *_PRAGMAS):
        connection.execute(pragma)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def lock(path: Path) -> IO[bytes]:
    """Lock the file at ``path``, made if need be, for one server. Raises Unusable where another process has it.

    Closing it lets go, and so does the end of the process, however it ends.
    """
    try:
        handle = os.fdopen(private.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
    except OSError as error:
        raise Unusable(
            f"{path.parent} cannot be used ({error.strerror}): name another --data-dir"
        ) from None
    try:
        _lock(handle)
    except OSError:
        handle.close()
        raise Unusable(
            f"Another ampmon serve uses {path.parent}: stop it, or name another --data-dir"
        ) from None
    return handle


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: IO[bytes]) -> None:
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: IO[bytes]) -> None:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(handle.fileno(), False)
