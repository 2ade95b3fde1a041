"""Reads the scales that a list draws of many runs: a bounded number of cells of each, in three statements for all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from uuid import UUID

from sqlalchemy import Connection, Table, func, select, tuple_

from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.model.aggregates.updates import ROWS, empty, of_rows
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.engine.rows import checked
from ampmon_server.store.pages.pages import PAGE_BITS, last_of_each_step, unpack
from ampmon_server.store.pages.pyramid import BITS, TOP
from ampmon_server.store.schema.tables import rollups, runs, streams, update_pages
from ampmon_server.store.updates.updates import UPDATES


CELLS = 16
"""A run has at least this many cells and at most 16 times as many. Short runs have fewer, of the finest level."""


def read(
    connection: Connection, run_ids: Sequence[UUID], within: Collection[str] | None = None
) -> dict[UUID, Cells]:
    """Cells of the updates of each run's first scaler.

    Deleted runs, runs without a scaler and damaged ones are left out, and with ``within`` those of other projects.
    """
    ids = [run_id.bytes for run_id in run_ids]
    found: dict[bytes, tuple[int, int, int]] = {}
    for run_id, number, first, last in _scalers(connection, ids, within):
        # The newest page over all ranks is not rolled up yet.
        place = number, _level(first, last), (last or 0) >> PAGE_BITS
        found.setdefault(run_id, place)
    cells = [(run_id, number, level) for run_id, (number, level, _) in found.items()]
    rows = [(run_id, number, page) for run_id, (number, _, page) in found.items()]
    rolled, newest = _pages(connection, rollups, cells), _pages(connection, update_pages, rows)
    drawn: dict[UUID, Cells] = {}
    for run_id, (_, level, _) in found.items():
        with suppress(Damaged):  # it must not hide the other runs
            drawn[UUID(bytes=run_id)] = _cells(
                level, rolled.get(run_id, []), newest.get(run_id, [])
            )
    return drawn


def _level(first: int | None, last: int | None) -> int:
    """The coarsest level with enough cells from the first to the last step, or the finest."""
    steps = 0 if first is None or last is None else last - first + 1
    enough = (level for level in range(TOP, 1, -1) if steps >> BITS * level >= CELLS)
    return next(enough, 1)


def _pages(
    connection: Connection, table: Table, wanted: Sequence[tuple[bytes, int, int]]
) -> dict[bytes, list[bytes]]:
    """The pages of each run that are ``wanted`` by stream, and level or page number."""
    of = table.c
    which = tuple_(of.run_id, of.stream, of.level if "level" in of else of.bucket)
    pages: dict[bytes, list[bytes]] = {}
    for run_id, data in connection.execute(
        select(of.run_id, of.data).where(which.in_(wanted)).order_by(of.run_id, of.bucket)
    ):
        pages.setdefault(run_id, []).append(data)
    return pages


def _cells(level: int, rolled: Sequence[bytes], newest: Sequence[bytes]) -> Cells:
    rows = [of_rows(last_of_each_step(unpack(data, ROWS))) for data in newest]
    return UPDATES.roll(joined([empty(), UPDATES.unpack(rolled), *rows]), level)


def _scalers(
    connection: Connection, ids: list[bytes], projects: Collection[str] | None
) -> list[tuple[bytes, int, int | None, int | None]]:
    """Run, number, first and last step of each scaler, with a run's first scaler first."""
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
    columns, found = tuple(statement.selected_columns), []
    for row in connection.execute(statement):
        with suppress(Damaged):
            found.append(tuple(checked(columns, row)))
    return found
