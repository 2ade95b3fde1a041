"""Deletes rows of a run, or everything of a deleted run, in short transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, delete, select, tuple_

from ampmon_server.store.engine import engine
from ampmon_server.store.schema.tables import (
    gradient_blocks,
    gradient_totals,
    metadata,
    module_blocks,
    runs,
    scalar_pages,
    streams,
    update_pages,
)


ROWS_MAX = 2000
BLOCKS_MAX = 64
"""Rows or blocks deleted in one transaction. A block takes many pages of the file, and deleting it reads its row."""

DATA = [table for table in metadata.sorted_tables if "run_id" in table.c and table is not runs]
"""The tables with data of runs. Streams come last, so `deleted` still finds a run after an interruption."""
DATA.sort(key=lambda table: table is streams)

_LARGE = {gradient_blocks, gradient_totals, module_blocks, scalar_pages, update_pages}


@dataclass(frozen=True, slots=True)
class Removal:
    """The rows of one table and one run that match ``of``."""

    table: Table
    of: ColumnElement[bool]

    @property
    def at_once(self) -> int:
        large = self.table in _LARGE or "level" in self.table.c
        return BLOCKS_MAX if large else ROWS_MAX

    def some(self, connection: Connection) -> int:
        """Delete the first `at_once` of the remaining rows and return how many were deleted."""
        _, *key = self.table.primary_key
        which = self.of
        following = select(*key).where(which).order_by(*key).offset(self.at_once).limit(1)
        first_kept = connection.execute(following).first()
        if first_kept is not None:
            which = and_(which, tuple_(*key) < tuple_(*first_kept))
        return connection.execute(delete(self.table).where(which)).rowcount


def all_of(database: Engine, removals: list[Removal]) -> Iterator[int]:
    """Delete all rows, a transaction at a time, and yield how many rows each deletes. Raises Busy."""
    for removal in removals:
        removed = removal.at_once
        while removed >= removal.at_once:
            removed = engine.write(database, removal.some)
            yield removed


def of_run(run_id: bytes) -> list[Removal]:
    """Return the removals of all data of a run except its own row."""
    return [Removal(table, table.c.run_id == run_id) for table in DATA]


def deleted(connection: Connection) -> list[bytes]:
    """Return the ids of deleted runs whose data is not all removed."""
    left = select(streams.c.run_id).where(streams.c.run_id == runs.c.run_id).exists()
    return list(connection.scalars(select(runs.c.run_id).where(runs.c.deleted == 1, left)))
