"""Opens the database: the one place that knows which engine it is, and what each needs said differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Engine, Select, Table, create_engine, event, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from ampmon_server.store.errors import Busy, Unusable


BUSY_TIMEOUT_MS = 5000
_PRAGMAS = (
    f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}",
    "PRAGMA journal_mode = WAL",
    # A commit is on the disk before it is acknowledged: the sender then lets go of its own copy, and power may fail.
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -32768",
)


def open_engine(url: str) -> Engine:
    """An engine for the database at ``url``. Raises Unusable for what is not SQLite."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise Unusable(
            "--database-url: an SQLAlchemy URL, such as sqlite:////data/ampmon.db"
        ) from None
    if parsed.get_backend_name() != "sqlite":
        raise Unusable(f"--database-url: {parsed.get_backend_name()} is not supported; use sqlite")
    if parsed.database in {None, "", ":memory:"}:
        raise Unusable("--database-url: name a file; a database in memory has one connection only")
    engine = create_engine(parsed, pool_size=8, max_overflow=32)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver's own BEGIN would come late, and never for reads
    for pragma in _PRAGMAS:
        connection.execute(pragma)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view of the database. Raises Busy when it cannot be read now."""
    with _busy_as_such(), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction, committed at the end. Raises Busy, with nothing written, when the database is locked or full."""
    with _busy_as_such(), engine.connect() as opened:
        connection = opened.execution_options(writes=True)
        with connection.begin():
            yield connection


@contextmanager
def _busy_as_such() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise Busy(f"The database cannot be used now: {error.orig}") from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Busy("The connection to the database was lost.") from error
        raise


def fetch(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """All rows as the driver gives them: plain tuples, several times faster than rows with names."""
    cursor = connection.execute(statement, parameters).cursor
    return [] if cursor is None else cursor.fetchall()  # type: ignore[return-value]


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]], *, replace: bool = False
) -> None:
    """Insert whole rows, as tuples in the table's order; a row whose key is there stays, or is replaced.

    Tuples go to the driver as they are: building a dict for each would halve the rate of ingest.
    """
    if rows:
        connection.exec_driver_sql(_insert(table, replace, connection.dialect), list(rows))


@lru_cache(maxsize=64)
def _insert(table: Table, replace: bool, dialect: Dialect) -> str:
    keys = [column.name for column in table.primary_key]
    # Both dialects spell the clause alike, each through a construct of its own.
    insert = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
    statement = insert(table)
    if replace:
        changed = {
            column.name: statement.excluded[column.name]
            for column in table.columns
            if not column.primary_key
        }
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    return str(statement.compile(dialect=dialect))
