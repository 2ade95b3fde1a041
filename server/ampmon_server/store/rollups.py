"""Updates rolled up: what ingest recomputes of them, and what figures read.

They are of a scaler over all ranks and attempts, under the lowest of its streams' numbers. A row is read by its step
alone, so a cell is made of the same rows whoever sent them and in whatever order. Cells are made once, when the page of
their rows is no longer the newest: readers roll up the newest page themselves.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, update

from ampmon_server.cells.merging import Cells
from ampmon_server.cells.updates import LAYOUT, Counts, count, empty
from ampmon_server.store import gradient_rollups, parameter_rollups, pyramid
from ampmon_server.store.pages import PAGE_BITS
from ampmon_server.store.pyramid import Key, Pyramid
from ampmon_server.store.scalers import Scaler, scalers_of
from ampmon_server.store.updates import next_step, read_cells
from ampmon_server.store.windows import Series, Stretch
from ampmon_server.tables import rollups, runs


UPDATES = Pyramid(rollups, LAYOUT.dtype, LAYOUT.merge)

REBUILT_AT_ONCE = 2**14
"""Steps whose rows are in memory at a time."""


def refresh(connection: Connection, scaler: Scaler, first: int, last: int, edge: int) -> None:
    """Make the cells of the steps from ``first`` to ``last`` anew, and those of pages that still grew before.

    ``edge`` is what the scaler's was before these steps were stored. Steps whose rows are no longer all held stay as
    they are.
    """
    low = max(min(first, edge), scaler.rows_from)
    high = scaler.edge - 1 if scaler.edge > edge else min(last, edge - 1)
    if low <= high:
        _roll_up(connection, scaler, low, high)


def _roll_up(connection: Connection, scaler: Scaler, first: int, last: int) -> None:
    within = pyramid.cells_of(first, last)
    rows = read_cells(connection, scaler, *pyramid.steps_of(within))
    pyramid.put(connection, UPDATES, _key(scaler), within, UPDATES.roll(rows, 1))


def rebuild(connection: Connection, run_id: bytes) -> None:
    """Make all cells of a run's updates anew from the rows that are held, and its totals from those."""
    total = Counts()
    for scaler in scalers_of(connection, run_id):
        start = next_step(connection, scaler, scaler.rows_from)
        while start is not None and start < scaler.edge:
            stop = min((start >> PAGE_BITS << PAGE_BITS) + REBUILT_AT_ONCE, scaler.edge)
            _roll_up(connection, scaler, start, stop - 1)
            start = next_step(connection, scaler, stop)
        gradient_rollups.rebuild(connection, scaler)
        parameter_rollups.rebuild(connection, run_id, scaler.sampled)
        total = total.plus(totals(connection, scaler))
    changed = {"updates": total.updates, "skipped": total.skipped, "sampled": total.sampled}
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(changed))


def totals(connection: Connection, scaler: Scaler) -> Counts:
    """The distinct steps of a scaler, by its cells."""
    return count(window(connection, scaler, Stretch(), columns=0))


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
        scaler.edge,
    )
    return series.window(stretch, columns)


def steps(connection: Connection, scaler: Scaler, stretch: Stretch) -> tuple[int, int]:
    """From which step to before which a stretch has updates; (0, 0) where it has none. Of time it asks the cells."""
    if stretch.by == "step":
        return stretch.start, stretch.stop
    cells = window(connection, scaler, stretch, columns=1)
    return (int(cells["first"].min()), int(cells["last"].max()) + 1) if len(cells) else (0, 0)
