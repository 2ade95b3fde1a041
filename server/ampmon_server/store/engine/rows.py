"""Reads and inserts rows fast, on SQLite or PostgreSQL, and splits lists into pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    FromClause,
    LargeBinary,
    Select,
    SmallInteger,
    Table,
    bindparam,
    tuple_,
)
from sqlalchemy import Row as Fetched
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.types import NullType

from ampmon_server.store.engine.errors import Damaged


Checked = TypeVar("Checked", bound=Sequence[Any])
Listed = TypeVar("Listed")
Row = tuple[Any, ...]

Key = tuple[Any, ...]
"""The first values of a row's primary key: run_id, stream, and the name where the table has one in its key."""

_ARRAYS: dict[type, str] = {
    BigInteger: "bigint[]",
    SmallInteger: "smallint[]",
    Double: "double precision[]",
    LargeBinary: "bytea[]",
}
"""PostgreSQL array types by column type. All others use text[], because a cast to varchar(n) truncates silently."""

_MISTYPED = "a row has values of another type"


def fetch(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    """Return all rows as plain tuples, several times faster than SQLAlchemy's named rows. Raises Damaged."""
    cursor = connection.execute(statement, parameters).cursor
    rows: list[Any] = [] if cursor is None else list(cursor.fetchall())
    if connection.dialect.name == "sqlite":
        kinds = _kinds(statement)
        for row in rows:
            if not all(map(isinstance, row, kinds)):
                raise Damaged(_MISTYPED)
    return rows


def named(connection: Connection, statement: Select[Any]) -> list[Fetched[Any]]:
    """Return all rows with names. Raises Damaged, also for a null where a column allows none."""
    columns = tuple(statement.selected_columns)
    return [checked(columns, row) for row in connection.execute(statement)]


def checked(columns: tuple[ColumnElement[Any], ...], row: Checked) -> Checked:
    """Return a row. Raises Damaged if a value has another type than its column: SQLite returns any that it finds."""
    if not all(map(isinstance, row, _types(columns))):
        raise Damaged(_MISTYPED)
    return row


@lru_cache
def _kinds(statement: Select[Any]) -> tuple[tuple[type, ...], ...]:
    """The types that the values of a row may have. An outer join may find nulls in any column."""
    return tuple((*types, type(None)) for types in _types(tuple(statement.selected_columns)))


@lru_cache
def _types(columns: tuple[ColumnElement[Any], ...]) -> tuple[tuple[type, ...], ...]:
    return tuple(
        (object,)
        if isinstance(column.type, NullType)
        else (column.type.python_type, *[type(None)] * getattr(column, "nullable", True))
        for column in columns
    )


def sound(columns: tuple[Column[Any], ...], row: Sequence[Any]) -> dict[str, Any]:
    """The values of a row by column, without those of another type."""
    fits = map(isinstance, row, _types(columns))
    return {
        column.name: value for column, value, fit in zip(columns, row, fits, strict=True) if fit
    }


def of_stream(table: FromClause) -> ColumnElement[bool]:
    """The condition that a row belongs to the stream bound by `bound`."""
    return (table.c.run_id == bindparam("of")) & (table.c.stream == bindparam("number"))


def of_attempt(table: FromClause) -> ColumnElement[bool]:
    """The condition that a row belongs to the stream bound by `bound`, and to the attempt ``attempt``."""
    return of_stream(table) & (table.c.attempt == bindparam("attempt"))


def key_is(table: Table) -> ColumnElement[bool]:
    """The condition that a row's primary key begins with the `Key` bound by `bound`."""
    named = "name" in table.primary_key.columns
    return of_stream(table) & (table.c.name == bindparam("name")) if named else of_stream(table)


def bound(key: Key) -> dict[str, Any]:
    """The bind parameters of `key_is` and `of_stream`."""
    return dict(zip(("of", "number", "name"), key, strict=False))


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, replace: bool = False
) -> None:
    """Insert whole rows of one run, ``run_id`` first. A stored row with the same key stays, unless ``replace``.

    With ``replace``, each row has a key of its own. Rows are tuples in column order: building a dict for each would
    halve the rate of ingest.
    """
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(_row_by_row(table, replace), list(rows))
        return
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
        # The run as one constant, not as an array: Citus finds the node by it.
        f"SELECT %b::bytea, batch.* FROM unnest({arrays}) AS batch "
        f"ON CONFLICT ({keys}) DO " + (f"UPDATE SET {changed}" if replace else "NOTHING")
    )


def _array(column: Column[Any]) -> str:
    return next((name for kind, name in _ARRAYS.items() if isinstance(column.type, kind)), "text[]")


def _values(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if not column.primary_key]


# -- pages of a list ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Paged(Generic[Listed]):
    """A page of rows, and the cursor of the next page, None at the end."""

    rows: list[Listed]
    next: str | None


def newest_rows(
    connection: Connection,
    statement: Select[Any],
    key: Sequence[ColumnElement[Any]],
    *,
    limit: int,
    cursor: str | None,
) -> tuple[Sequence[Fetched[Any]], str | None]:
    """Return the last ``limit`` rows by an integer ``key``, in descending order, and the cursor of the next page."""
    statement = statement.order_by(*(column.desc() for column in key)).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(tuple_(*key) < tuple_(*decode_cursor(cursor)))
    rows = named(connection, statement)
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode_cursor(*(rows[limit - 1]._mapping[column] for column in key))


def encode_cursor(*key: int) -> str:
    return "-".join(map(str, key))


def decode_cursor(cursor: str) -> list[int]:
    """Return the key in a cursor made by `encode_cursor`."""
    return [int(part) for part in cursor.split("-")]
