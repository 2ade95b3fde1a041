"""Pages of a list: a cursor is the key of the last row shown, so that what is added meanwhile moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import le
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, tuple_
from sqlalchemy import Row as Fetched

from ampmon_server.store.errors import BadQuery
from ampmon_server.store.numbers import INTEGER_MAX


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Paged(Generic[Row]):
    """Some rows, and the cursor of those that follow; None at the end."""

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
    """The last ``limit`` rows by ``key``, which is whole numbers, and the cursor of those that follow.

    Raises BadQuery for a foreign cursor.
    """
    statement = statement.order_by(*(column.desc() for column in key)).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(
            tuple_(*key) < tuple_(*decode(cursor, *[INTEGER_MAX] * len(key)))
        )
    rows = connection.execute(statement).all()
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode(*(rows[limit - 1]._mapping[column] for column in key))


def encode(*key: int) -> str:
    return "-".join(map(str, key))


def decode(cursor: str, *most: int) -> list[int]:
    """The key in a cursor, whose numbers are so large at ``most``. Raises BadQuery for what `encode` did not make."""
    parts = cursor.split("-")
    if all(part.isascii() and part.isdigit() and len(part) < 40 for part in parts):
        key = [int(part) for part in parts]
        if len(key) == len(most) and all(map(le, key, most)):
            return key
    raise BadQuery("cursor", "it is not one that this list gave")
