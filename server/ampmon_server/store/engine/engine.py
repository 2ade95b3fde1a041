"""Runs transactions on SQLite or PostgreSQL."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import ModuleType
from typing import Concatenate, ParamSpec, TypeVar

import msgspec
import orjson
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ampmon_server.store.engine import postgresql, sqlite
from ampmon_server.store.engine.errors import Busy, Conflict, Damaged, Unreadable, Unusable


RETRY_S = 5.0
"""How long a transaction is retried after conflicts."""
_PAUSE_S = 0.01

_SERVER = re.compile(r"connection to server (at|on) .*? failed: ")
"""Matches the address of PostgreSQL in an error. It is cut out, because any token holder can read the message."""

_UNDECODED = orjson.JSONDecodeError, msgspec.DecodeError
_TEXT = re.compile(r"Could not decode to UTF-8 (column '.*?') with text")
"""Matches SQLite's error about a text, up to the text itself, which only those may read who see its run."""
WHERE = "; `ampmon db verify` says where"
"""Ends the message of Unreadable."""

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
    """Open one consistent snapshot of the database. Raises Busy if it cannot be read now, and Unreadable for damage."""
    return _transaction(engine, writes=False)


def writing(engine: Engine) -> AbstractContextManager[Connection]:
    """Open a transaction, committed at the end. Raises Busy, with nothing written, if the database is locked or full.

    Also raises Busy if the database file was removed or replaced meanwhile, so that the rows are lost.
    """
    return _transaction(engine, writes=True)


@contextmanager
def _transaction(engine: Engine, *, writes: bool) -> Iterator[Connection]:
    of = _ENGINES[engine.dialect.name]
    with as_store_errors(engine), engine.connect() as opened:
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
def as_store_errors(engine: Engine) -> Iterator[None]:
    """Raise errors of the driver, and those of damaged data, as Busy and Unreadable."""
    of = _ENGINES[engine.dialect.name]
    try:
        yield
    # `fetch` bypasses SQLAlchemy's error handling. What clients send was decoded before.
    except (PoolTimeout, DBAPIError, *sqlite.ERRORS, Damaged, *_UNDECODED) as error:
        orig = getattr(error, "orig", None) or error
        ours = _damage(of, orig) or _busy(of, orig, error)
        if ours is None:
            raise
        raise ours from error


def _damage(of: ModuleType, orig: BaseException) -> Unreadable | None:
    if isinstance(orig, Damaged):
        return Unreadable(f"{orig}{WHERE}")
    if isinstance(orig, _UNDECODED):
        return Unreadable(f"Stored JSON is damaged ({orig}){WHERE}")
    if text := _TEXT.match(str(orig)):
        return Unreadable(f"Stored text is damaged ({text[1]} is not UTF-8){WHERE}")
    if of.is_damage(orig):
        return Unreadable(f"The database cannot be used now: {_line(orig)}")
    return None


def _busy(of: ModuleType, orig: BaseException, error: Exception) -> Busy | None:
    if isinstance(error, PoolTimeout):
        return Busy("Every connection to the database is in use.")
    if of.is_conflict(orig):
        return Conflict("The write conflicted with other writers. Retry.")
    unusable = isinstance(error, (OperationalError, sqlite3.DatabaseError))
    if unusable or postgresql.is_read_only(orig):
        return Busy(f"The database cannot be used now: {_line(orig)}")
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return Busy("The connection to the database was lost.")
    return None


def _line(error: BaseException) -> str:
    words = _SERVER.sub("", " ".join(str(error).split())) or type(error).__name__
    return f"{words}{WHERE}" if sqlite.is_damage(error) else words


# -- calls -------------------------------------------------------------------------------------------------------------


class Calls:
    """Base of classes that have a database, for methods made by `reads` and `writes`.

    Every call may raise Busy and Unreadable.
    """

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
