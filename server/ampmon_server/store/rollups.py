"""Updates rolled up: what ingest recomputes of them, and what figures read.

They are of a scaler over all ranks and attempts, under the lowest of its streams' numbers. A row is read by its step
alone, so a cell is made of the same rows whoever sent them and in whatever order.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, func, select, update

from ampmon_server.cells.merging import Cells, joined
from ampmon_server.cells.updates import LAYOUT, Counts, count, empty
from ampmon_server.store import gradient_rollups, parameter_rollups, pyramid
from ampmon_server.store.numbers import INTEGER_MAX
from ampmon_server.store.pyramid import BITS, TOP, Key, Pyramid
from ampmon_server.store.scalers import Scaler, scalers_of
from ampmon_server.store.updates import read_cells
from ampmon_server.store.windows import Series, Stretch
from ampmon_server.tables import rollups, runs, updates


UPDATES = Pyramid(rollups, LAYOUT.dtype, LAYOUT.merge)

REBUILT_AT_ONCE = 2**14
"""Steps whose rows are in memory at a time."""


def refresh(
    connection: Connection, scaler: Scaler, first: int, last: int, new: Cells | None = None
) -> Counts:
    """Make the cells of the steps from ``first`` to ``last`` anew from their rows, and say what that changes.

    ``new`` are those rows themselves, where nothing else is held from ``first`` on. Steps whose rows are no longer
    all held stay as they are.
    """
    if last < scaler.rows_from:
        return Counts()
    within = pyramid.cells_of(max(first, scaler.rows_from), last)
    low, high = pyramid.steps_of(within)
    if new is None or first < low:
        new = read_cells(connection, scaler, low, high)
    elif first > low:
        new = joined([read_cells(connection, scaler, low, first - 1), new])
    cells = UPDATES.roll(new, 1)
    before = pyramid.put(connection, UPDATES, _key(scaler), within, cells)
    return count(cells).minus(count(before))


def rebuild(connection: Connection, run_id: bytes) -> None:
    """Make all cells of a run's updates anew from the rows that are held, and its totals from those."""
    total = Counts()
    for scaler in scalers_of(connection, run_id):
        start = _next_step(connection, scaler, scaler.rows_from)
        while start is not None:
            within = pyramid.cells_of(start, start + REBUILT_AT_ONCE - 1)
            rows = read_cells(connection, scaler, *pyramid.steps_of(within))
            pyramid.put(connection, UPDATES, _key(scaler), within, UPDATES.roll(rows, 1))
            start = _next_step(connection, scaler, pyramid.steps_of(within)[1] + 1)
        gradient_rollups.rebuild(connection, scaler)
        parameter_rollups.rebuild(connection, run_id, scaler.sampled)
        total = total.plus(totals(connection, scaler))
    changed = {"updates": total.updates, "skipped": total.skipped, "sampled": total.sampled}
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(changed))


def _next_step(connection: Connection, scaler: Scaler, first: int) -> int | None:
    """The first step from ``first`` on that any rank has."""
    table = updates.c
    found = [
        connection.scalar(
            select(func.min(table.step)).where(
                table.run_id == scaler.run_id,
                table.stream == source.number,
                table.step >= first,
            )
        )
        for source in scaler.sources
        if source.last_step is not None and source.last_step >= first
    ]
    return min((step for step in found if step is not None), default=None)


def totals(connection: Connection, scaler: Scaler) -> Counts:
    """The distinct steps of a scaler, by its cells."""
    every = (0, INTEGER_MAX >> BITS * TOP)
    return count(pyramid.read(connection, UPDATES, _key(scaler), TOP, every))


def _key(scaler: Scaler) -> Key:
    return scaler.run_id, scaler.number


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's updates in a stretch, as `windows.Series.window` finds them."""
    if not scaler.sources:
        return empty()
    series = Series(
        connection,
        UPDATES,
        _key(scaler),
        partial(read_cells, connection, scaler),
        scaler.rows_from,
    )
    return series.window(stretch, columns)


def steps(connection: Connection, scaler: Scaler, stretch: Stretch) -> tuple[int, int]:
    """From which step to before which a stretch has updates; (0, 0) where it has none. Of time it asks the cells."""
    if stretch.by == "step":
        return stretch.start, stretch.stop
    cells = window(connection, scaler, stretch, columns=1)
    return (int(cells["first"].min()), int(cells["last"].max()) + 1) if len(cells) else (0, 0)
