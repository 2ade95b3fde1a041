"""Updates rolled up: what ingest recomputes of them, and what figures read.

They are of a scaler over all ranks and attempts, under the lowest of its streams' numbers. A row is read by its step
alone, so a cell is made of the same rows whoever sent them and in whatever order.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection

from ampmon_server.cells.merging import Cells, joined
from ampmon_server.cells.updates import LAYOUT, Counts, count, empty
from ampmon_server.store import pyramid
from ampmon_server.store.pyramid import Pyramid
from ampmon_server.store.scalers import Scaler
from ampmon_server.store.updates import read_cells
from ampmon_server.store.windows import Series, Stretch
from ampmon_server.tables import rollups


UPDATES = Pyramid(rollups, LAYOUT.dtype, LAYOUT.merge)


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
    before = pyramid.put(connection, UPDATES, (scaler.run_id, scaler.number), within, cells)
    return count(cells).minus(count(before))


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's updates in a stretch, as `windows.Series.window` finds them."""
    if not scaler.sources:
        return empty()
    series = Series(
        connection,
        UPDATES,
        (scaler.run_id, scaler.number),
        partial(read_cells, connection, scaler),
        scaler.rows_from,
    )
    return series.window(stretch, columns)
