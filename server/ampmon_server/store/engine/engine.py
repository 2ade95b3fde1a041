"""Runs transactions on SQLite or PostgreSQL."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ampmon_server.store.engine import postgresql, sqlite
from ampmon_server.store.engine.errors import Busy, Conflict, Damaged, Unusable


RETRY_S = 5.0
"""How long a transaction is retried after conflicts."""
_PAUSE_S = 0.01

_SERVER = re.compile(r"connection to server (at|on) .*? failed: ")
"""Matches the address of PostgreSQL in an error. It is cut out, because any token holder can read the message."""

_ENGINES = {"sqlite": sqlite, "postgresql": postgresql}

Given = ParamSpec("Given")
Result = TypeVar("Result")


def now_us() -> int:
    """Return the server's time, in us since the epoch."""
    return time.time_ns() // 1000


def open_engine(url: URL) -> Engine:
    """Create an engine for the database at ``url`` without connecting. Raises Unusable for an unsupported database."""
    if url.drivername == "sqlite":
        return sqlite.open_engine(url)
    if postgresql.is_named_by(url):
        return postgresql.open_engine(url)
    raise Unusable(
        f"--database-url: {url.drivername} is not supported; use sqlite or {postgresql.DRIVER}"
    )


def reading(engine: Engine) -> AbstractContextManager[Connection]:
    """Open one consistent snapshot of the database. Raises Busy if it cannot be read now."""
    return _transaction(engine, writes=False)


def writing(engine: Engine) -> AbstractContextManager[Connection]:
    """Open a transaction, committed at the end. Raises Busy, with nothing written, if the database is locked or full.

    Also raises Busy if the database file was removed or replaced meanwhile, so that the rows are lost.
    """
    return _transaction(engine, writes=True)


@contextmanager
def _transaction(engine: Engine, *, writes: bool) -> Iterator[Connection]:
    of = _ENGINES[engine.dialect.name]
    with _busy_as_such(engine), engine.connect() as opened:
        of.confirm(engine)
        connection = opened.execution_options(**(of.WRITES if writes else of.READS))
        with connection.begin():
            yield connection
        if writes:
            of.confirm(engine)


def write(
    engine: Engine,
    work: Callable[[Connection], Result],
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Run ``work`` in a committed transaction and return its result. Retry it after a conflict.

    ``work`` may run several times, so it must not keep state between runs. Raises Busy, with nothing written, if the
    database is not usable, or if conflicts last longer than `RETRY_S` by ``clock``, which returns seconds.
    """
    deadline, pause = clock() + RETRY_S, _PAUSE_S
    while True:
        try:
            with writing(engine) as connection:
                return work(connection)
        except Conflict:
            if clock() + pause > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))  # jitter, so two writers do not meet again
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
            raise Conflict("The write conflicted with other writers. Retry.") from error
        if isinstance(error, OperationalError) or of.is_unavailable(orig):
            raise Busy(f"The database cannot be used now: {_line(orig)}") from error
        if error.connection_invalidated:
            raise Busy("The connection to the database was lost.") from error
        raise
    except Damaged as error:
        raise Busy(f"{error}; `ampmon db verify` says where") from error
    except sqlite3.DatabaseError as error:  # `fetch` bypasses SQLAlchemy's error handling
        raise Busy(f"The database cannot be used now: {_line(error)}") from error


def _line(error: BaseException) -> str:
    words = _SERVER.sub("", " ".join(str(error).split())) or type(error).__name__
    return f"{words}; `ampmon db verify` says where" if "malformed" in words else words


# -- calls -------------------------------------------------------------------------------------------------------------


class Calls:
    """Base of classes that have a database, for methods made by `reads` and `writes`. Every call may raise Busy."""

    _engine: Engine


def reads(
    function: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Calls, Given], Result]:
    """Return a method that calls ``function`` with one consistent snapshot of the database."""

    @wraps(function)
    def method(self: Calls, /, *given: Given.args, **named: Given.kwargs) -> Result:
        with reading(self._engine) as connection:
            return function(connection, *given, **named)

    return method


def writes(
    function: Callable[Concatenate[Connection, Given], Result],
) -> Callable[Concatenate[Calls, Given], Result]:
    """Return a method that calls ``function`` in a committed transaction, and retries it after a conflict."""

    @wraps(function)
    def method(self: Calls, /, *given: Given.args, **named: Given.kwargs) -> Result:
        return write(self._engine, lambda connection: function(connection, *given, **named))

    return method
