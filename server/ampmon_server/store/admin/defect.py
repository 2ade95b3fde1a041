"""Shared by all checks of `ampmon db verify`: the defect that a check reports, and reading rows in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Table, select, tuple_


REPAIR = "ampmon db verify --repair rebuilds it from the rows"
RESTORE = "it cannot be rebuilt: restore a copy of the database"
DELETE = "ampmon db verify --repair deletes them"


class Defect(NamedTuple):
    """A defect in the database: where, what, and the remedy. Its text is one line."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"

    def of_run(self, run_id: object) -> Defect:
        """The defect with its run before the place."""
        return self._replace(where=f"run {run_id}, {self.where}".removesuffix(", "))


def in_order(
    connection: Connection, table: Table, run_id: bytes, at_once: int
) -> Iterator[Row[Any]]:
    """Yield the rows of a run in order of the table's primary key, reading ``at_once`` rows with each statement."""
    _, *key = table.primary_key
    statement = select(table).where(table.c.run_id == run_id).order_by(*key).limit(at_once)
    following = statement
    while rows := connection.execute(following).all():
        yield from rows
        last = (getattr(rows[-1], column.name) for column in key)
        following = statement.where(tuple_(*key) > tuple_(*last))
