"""Runs transactions on SQLite or PostgreSQL, and reads and inserts rows fast."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import (
    URL,
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Engine,
    LargeBinary,
    Select,
    SmallInteger,
    Table,
)
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
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

Row = tuple[Any, ...]

_ARRAYS: dict[type, str] = {
    BigInteger: "bigint[]",
    SmallInteger: "smallint[]",
    Double: "double precision[]",
    LargeBinary: "bytea[]",
}
"""PostgreSQL array types by column type. All others use text[], because a cast to varchar(n) truncates silently."""


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


# -- rows --------------------------------------------------------------------------------------------------------------


def fetch(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Return all rows as the driver's plain tuples, several times faster than SQLAlchemy's named rows."""
    cursor = connection.execute(statement, parameters).cursor
    return [] if cursor is None else cursor.fetchall()  # type: ignore[return-value]


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, replace: bool = False
) -> None:
    """Insert whole rows of one run, ``run_id`` first. A stored row with the same key stays, unless ``replace``.

    Of several rows with one key, the first is kept, or the last with ``replace``. Rows are tuples in column order:
    building a dict for each would halve the rate of ingest.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_row_by_row(table, replace), list(rows))
        return
    if replace:
        rows = _last_of_each_key(table, rows)
    _, *columns = zip(*rows, strict=True)
    statement = _all_at_once(table, replace, connection.dialect)
    connection.exec_driver_sql(statement, (rows[0][0], *map(list, columns)))


@lru_cache(maxsize=64)
def _row_by_row(table: Table, replace: bool) -> str:
    keys = [column.name for column in table.primary_key]
    statement = sqlite_insert(table)
    if not replace:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    else:
        changed = {column.name: statement.excluded[column.name] for column in _values(table)}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    return str(statement.compile(dialect=sqlite_dialect()))


@lru_cache(maxsize=64)
def _all_at_once(table: Table, replace: bool, dialect: Dialect) -> str:
    """A statement with one array per column, for rows of one run. Twice as fast as a statement per row.

    COPY into a temporary table is faster from about 1000 rows on, but most batches are smaller, and then it is slower.
    """
    quote = dialect.identifier_preparer.quote
    columns = [quote(column.name) for column in table.columns]
    arrays = ", ".join(f"%b::{_array(column)}" for column in list(table.columns)[1:])
    keys = ", ".join(quote(column.name) for column in table.primary_key)
    changed = ", ".join(f"{quote(c.name)} = excluded.{quote(c.name)}" for c in _values(table))
    return (
        f"INSERT INTO {quote(table.name)} ({', '.join(columns)}) "
        f"SELECT %b::bytea, batch.* FROM unnest({arrays}) AS batch "
        f"ON CONFLICT ({keys}) DO " + (f"UPDATE SET {changed}" if replace else "NOTHING")
    )


def _array(column: Column[Any]) -> str:
    return next((name for kind, name in _ARRAYS.items() if isinstance(column.type, kind)), "text[]")


def _values(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if not column.primary_key]


def _last_of_each_key(table: Table, rows: Sequence[Row]) -> list[Row]:
    """The last row of each key. PostgreSQL refuses to change a row twice in one statement."""
    places = [place for place, column in enumerate(table.columns) if column.primary_key]
    return list({tuple(row[place] for place in places): row for row in rows}.values())
