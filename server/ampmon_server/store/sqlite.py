"""SQLite as the store needs it: one file, one writer at a time, and a commit that outlives a power cut."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from ampmon_server.store.errors import Unusable


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
    engine = create_engine(
        url, pool_size=8, max_overflow=32, pool_use_lifo=True, hide_parameters=True
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


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
