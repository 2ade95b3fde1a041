"""Transactions on the database, whichever engine it is: when each begins, when it is tried again, what is busy."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, Select, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ampmon_server.store import postgresql, sqlite
from ampmon_server.store.errors import Busy, Conflict, Damaged, Unusable
from ampmon_server.store.inserting import insert_rows


__all__ = ["fetch", "insert_rows", "open_engine", "reading", "write", "writing"]

RETRY_S = 5.0
"""For so long a transaction that met another is tried again."""
_PAUSE_S = 0.01

_SERVER = re.compile(r"connection to server (at|on) .*? failed: ")
"""Where PostgreSQL is: the words go to whoever has a token."""

_ENGINES = {"sqlite": sqlite, "postgresql": postgresql}

Result = TypeVar("Result")


def _parse(url: str) -> URL:
    """Raises Unusable, without telling what stands in the URL: it may hold a password."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise Unusable(
            "--database-url: an SQLAlchemy URL, such as sqlite:////data/ampmon.db or "
            f"{postgresql.DRIVER}://user@host:5432/ampmon; in a password, write @ / : % as %40 %2F %3A %25"
        ) from None


def open_engine(url: str) -> Engine:
    """An engine for the database at ``url``; connects to nothing yet. Raises Unusable for another than the two."""
    parsed = _parse(url)
    if parsed.drivername == "sqlite":
        return sqlite.open_engine(parsed)
    if postgresql.is_named_by(parsed):
        return postgresql.open_engine(parsed)
    raise Unusable(
        f"--database-url: {parsed.drivername} is not supported; use sqlite or {postgresql.DRIVER}"
    )


def is_file(url: str) -> bool:
    """Whether it is an SQLite file that a URL means. Raises Unusable for what is no URL."""
    return _parse(url).drivername == "sqlite"


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view of the database. Raises Busy when it cannot be read now."""
    of = _ENGINES[engine.dialect.name]
    options = of.READS
    with _busy_as_such(engine), engine.connect() as opened:
        of.confirm(engine)
        connection = opened.execution_options(**options)
        with connection.begin():
            yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction, committed at the end. Raises Busy, with nothing written, when the database is locked or full.

    Busy, too, where what was written is not in the database: its file was removed or replaced meanwhile.
    """
    of = _ENGINES[engine.dialect.name]
    options = of.WRITES
    with _busy_as_such(engine), engine.connect() as opened:
        of.confirm(engine)
        connection = opened.execution_options(**options)
        with connection.begin():
            yield connection
        of.confirm(engine)


def write(
    engine: Engine,
    work: Callable[[Connection], Result],
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """What ``work`` gives, in a transaction that is committed; begun anew where another was in its way.

    ``work`` may so run several times, each as if it were the first. Raises Busy, with nothing written, after RETRY_S
    by ``clock``, which returns seconds.
    """
    deadline, pause = clock() + RETRY_S, _PAUSE_S
    while True:
        try:
            with writing(engine) as connection:
                return work(connection)
        except Conflict:
            if clock() + pause > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))  # so that two do not meet again
        pause *= 2


@contextmanager
def _busy_as_such(engine: Engine) -> Iterator[None]:
    of = _ENGINES[engine.dialect.name]
    try:
        yield
    except PoolTimeout as error:
        raise Busy("Every connection to the database is in use.") from error
    except DBAPIError as error:
        orig = error.orig or error
        if of.is_conflict(orig):
            raise Conflict("Other writers were in the way.") from error
        if isinstance(error, OperationalError) or of.is_unavailable(orig):
            raise Busy(f"The database cannot be used now: {_line(orig)}") from error
        if error.connection_invalidated:
            raise Busy("The connection to the database was lost.") from error
        raise
    except Damaged as error:
        raise Busy(f"{error}; `ampmon db verify` says where") from error
    except sqlite3.DatabaseError as error:  # of rows that `fetch` lets the driver get by itself
        raise Busy(f"The database cannot be used now: {_line(error)}") from error


def _line(error: BaseException) -> str:
    words = _SERVER.sub("", " ".join(str(error).split())) or type(error).__name__
    return f"{words}; `ampmon db verify` says where" if "malformed" in words else words


def fetch(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """All rows as the driver gives them: plain tuples, several times faster than rows with names."""
    cursor = connection.execute(statement, parameters).cursor
    return [] if cursor is None else cursor.fetchall()  # type: ignore[return-value]
