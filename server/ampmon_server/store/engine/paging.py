"""Splits lists into pages. A cursor is the key of the last row shown, so rows added meanwhile shift nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, tuple_
from sqlalchemy import Row as Fetched

from ampmon_server.store.engine.rows import named


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Paged(Generic[Row]):
    """A page of rows, and the cursor of the next page, None at the end."""

    rows: list[Row]
    next: str | None


def newest(
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
        statement = statement.where(tuple_(*key) < tuple_(*decode(cursor)))
    rows = named(connection, statement)
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode(*(rows[limit - 1]._mapping[column] for column in key))


def encode(*key: int) -> str:
    return "-".join(map(str, key))


def decode(cursor: str) -> list[int]:
    """Return the key in a cursor made by `encode`."""
    return [int(part) for part in cursor.split("-")]
