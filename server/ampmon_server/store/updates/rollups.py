"""Updates rolled up: what ingest recomputes of them, and what figures read.

They are of a scaler over all ranks and attempts, under the lowest of its streams' numbers. A row is read by its step
alone, so a cell is made of the same rows whoever sent them and in whatever order. Cells are made once, when the page of
their rows is no longer the newest: readers roll up the newest page themselves.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection, update

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import LAYOUT, Counts, count, empty
from ampmon_server.store.pages.pages import unsealed
from ampmon_server.store.pages.pyramid import Pyramid
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.samples import gradient_rollups, parameter_rollups
from ampmon_server.store.schema.tables import rollups, runs
from ampmon_server.store.streams.scalers import Scaler, scalers_of
from ampmon_server.store.updates.updates import next_step, read_cells


UPDATES = Pyramid(rollups, LAYOUT.dtype, LAYOUT.merge)


def refresh(connection: Connection, scaler: Scaler, first: int, last: int, edge: int) -> None:
    """Make the cells of the steps from ``first`` to ``last`` anew, and those of pages that still grew before.

    ``edge`` is what the scaler's was before these steps were stored. Steps whose rows are no longer all held stay as
    they are.
    """
    steps = unsealed(first, last, edge, scaler.edge, scaler.rows_from)
    if steps is not None:
        series(connection, scaler).roll_up(*steps)


def rebuild(connection: Connection, run_id: bytes) -> None:
    """Make all cells of a run's updates anew from the rows that are held, and its totals from those."""
    total = Counts()
    for scaler in scalers_of(connection, run_id):
        if scaler.sources:
            series(connection, scaler).rebuild()
            gradient_rollups.series(connection, scaler).rebuild()
        parameter_rollups.rebuild(connection, run_id, scaler.sampled)
        total = total.plus(totals(connection, scaler))
    changed = {"updates": total.updates, "skipped": total.skipped, "sampled": total.sampled}
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(changed))


def totals(connection: Connection, scaler: Scaler) -> Counts:
    """The distinct steps of a scaler, by its cells."""
    return count(window(connection, scaler, Stretch(), columns=0))


def series(connection: Connection, scaler: Scaler) -> WindowedSeries:
    """A scaler's updates; of a scaler with streams."""
    return WindowedSeries(
        connection,
        UPDATES,
        (scaler.run_id, scaler.number),
        partial(read_cells, connection, scaler),
        scaler.rows_from,
        scaler.edge,
        partial(next_step, connection, scaler),
    )


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's updates in a stretch, as `windows.WindowedSeries.window` finds them."""
    return series(connection, scaler).window(stretch, columns) if scaler.sources else empty()


def steps(connection: Connection, scaler: Scaler, stretch: Stretch) -> tuple[int, int]:
    """From which step to before which a stretch has updates; (0, 0) where it has none. Of time it asks the cells."""
    if stretch.by == "step":
        return stretch.start, stretch.stop
    cells = window(connection, scaler, stretch, columns=1)
    return (int(cells["first"].min()), int(cells["last"].max()) + 1) if len(cells) else (0, 0)
