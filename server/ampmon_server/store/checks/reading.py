"""Reads all rows of a run in one table, some at a time: what is checked may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row, Table, select, tuple_


def in_order(
    connection: Connection, table: Table, run_id: bytes, by: tuple[str, ...], at_once: int
) -> Iterator[Row[Any]]:
    """The rows of a run in order of columns that together tell them apart, whole numbers of at least 0."""
    key = [table.c[name] for name in by]
    after: tuple[int, ...] = (-1,) * len(by)
    while True:
        rows = connection.execute(
            select(table)
            .where(table.c.run_id == run_id, tuple_(*key) > tuple_(*after))
            .order_by(*key)
            .limit(at_once)
        ).all()
        yield from rows
        if len(rows) < at_once:
            return
        after = tuple(getattr(rows[-1], name) for name in by)
