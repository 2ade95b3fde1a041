"""What is drawn of many runs' scales in a list: a bounded number of cells of each, in two statements for all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from sqlalchemy import Connection, func, select, tuple_

from ampmon_server.cells.merging import Cells
from ampmon_server.cells.updates import empty
from ampmon_server.store.pyramid import BITS, TOP
from ampmon_server.store.rollups import UPDATES
from ampmon_server.tables import rollups, runs, streams


CELLS = 16
"""So many cells at least, and 16 times as many at most, where a run has as many of the finest."""


def read(
    connection: Connection, run_ids: Sequence[UUID], projects: Collection[str] | None = None
) -> dict[UUID, Cells]:
    """Cells of the updates of each run's first scaler, none of a run that has none.

    Runs that are gone are left out, and so are those of other ``projects``, if some are given.
    """
    ids = [run_id.bytes for run_id in run_ids]
    keys: dict[bytes, tuple[int, int | None]] = {}
    for run_id, number, first, last in _scalers(connection, ids, projects):
        level = None if first is None or last is None else _level(first, last)
        keys.setdefault(run_id, (number, level))
    wanted = [(run_id, number, level) for run_id, (number, level) in keys.items() if level]
    of = rollups.c
    pages: dict[bytes, list[bytes]] = {run_id: [] for run_id in keys}
    for run_id, data in connection.execute(
        select(of.run_id, of.data)
        .where(tuple_(of.run_id, of.stream, of.level).in_(wanted))
        .order_by(of.run_id, of.bucket)
    ):
        pages[run_id].append(data)
    return {
        UUID(bytes=run_id): UPDATES.unpack(found) if found else empty()
        for run_id, found in pages.items()
    }


def _scalers(
    connection: Connection, ids: list[bytes], projects: Collection[str] | None
) -> list[tuple[bytes, int, int | None, int | None]]:
    """Run, number, first and last step of each scaler, a run's first one first."""
    table = streams.c
    number = func.min(table.stream)
    statement = (
        select(table.run_id, number, func.min(table.first_step), func.max(table.last_step))
        .join(runs, runs.c.run_id == table.run_id)
        .where(table.run_id.in_(ids), runs.c.deleted == 0, table.scaler != "")
        .group_by(table.run_id, table.scaler)
        .order_by(number)
    )
    if projects is not None:
        statement = statement.where(runs.c.project.in_(projects))
    return [tuple(row) for row in connection.execute(statement)]


def _level(first: int, last: int) -> int:
    """The coarsest level with enough cells from the first to the last step, or the finest."""
    enough = (level for level in range(TOP, 1, -1) if (last - first + 1) >> BITS * level >= CELLS)
    return next(enough, 1)
