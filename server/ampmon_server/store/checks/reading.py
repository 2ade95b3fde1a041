"""Reads all rows of a run in one table, some at a time: what is checked may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row, Table, select, tuple_


def in_order(
    connection: Connection, table: Table, run_id: bytes, at_once: int
) -> Iterator[Row[Any]]:
    """The rows of a run in order of the table's key."""
    _, *key = table.primary_key
    statement = select(table).where(table.c.run_id == run_id).order_by(*key).limit(at_once)
    following = statement
    while rows := connection.execute(following).all():
        yield from rows
        last = (getattr(rows[-1], column.name) for column in key)
        following = statement.where(tuple_(*key) > tuple_(*last))
