"""Whole rows into a table, as each engine takes them fastest; what goes in is tuples, in the table's order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    LargeBinary,
    SmallInteger,
    Table,
)
from sqlalchemy.dialects import sqlite


Row = tuple[Any, ...]

_ARRAYS: dict[type, str] = {
    BigInteger: "bigint[]",
    SmallInteger: "smallint[]",
    Double: "double precision[]",
    LargeBinary: "bytea[]",
}
"""Types of a column's values on their way to PostgreSQL; what is not here is text, which no cast would cut short."""


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, replace: bool = False
) -> None:
    """Insert whole rows of one run, ``run_id`` first; a row whose key is there stays, or is replaced.

    Where rows have one key, the first of them stays, or the last replaces it. Tuples go to the driver as they are:
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
    statement = sqlite.insert(table)
    if not replace:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    else:
        changed = {column.name: statement.excluded[column.name] for column in _values(table)}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=changed)
    return str(statement.compile(dialect=sqlite.dialect()))


@lru_cache(maxsize=64)
def _all_at_once(table: Table, replace: bool, dialect: Dialect) -> str:
    """A statement with an array per column: twice as fast as a statement per row, and bound to one run.

    COPY into a temporary table is faster still from some 1000 rows on, and slower for fewer, as most batches are.
    """
    quote = dialect.identifier_preparer.quote
    columns = [quote(column.name) for column in table.columns]
    arrays = ", ".join(f"%b::{_array(column)}" for column in list(table.columns)[1:])
    keys = ", ".join(quote(column.name) for column in table.primary_key)
    changed = ", ".join(f"{quote(c.name)} = excluded.{quote(c.name)}" for c in _values(table))
    return (
        f"INSERT INTO {quote(table.name)} ({', '.join(columns)}) "
        f"SELECT %b::bytea, told.* FROM unnest({arrays}) AS told "
        f"ON CONFLICT ({keys}) DO " + (f"UPDATE SET {changed}" if replace else "NOTHING")
    )


def _array(column: Column[Any]) -> str:
    return next((name for kind, name in _ARRAYS.items() if isinstance(column.type, kind)), "text[]")


def _values(table: Table) -> list[Column[Any]]:
    return [column for column in table.columns if not column.primary_key]


def _last_of_each_key(table: Table, rows: Sequence[Row]) -> list[Row]:
    """PostgreSQL changes no row twice in a statement."""
    places = [place for place, column in enumerate(table.columns) if column.primary_key]
    return list({tuple(row[place] for place in places): row for row in rows}.values())
