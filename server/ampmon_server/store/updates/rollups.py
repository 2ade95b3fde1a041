"""Rolls up updates: ingest recomputes the cells, and figures read them.

Cells cover a scaler over all ranks and attempts, and are stored under its lowest stream number. Rows are read by step
alone, so a cell is built from the same rows, whichever process sent them and in whatever order. Cells are built once,
when the page of their rows is no longer the newest. Readers roll up the newest page themselves.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import LAYOUT, Counts, count, empty
from ampmon_server.store.pages.pyramid import Pyramid
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.schema.tables import rollups
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.updates.updates import next_step, read_cells


UPDATES = Pyramid(rollups, LAYOUT.dtype, LAYOUT.merge)


def totals(connection: Connection, scaler: Scaler) -> Counts:
    """Count the distinct steps of a scaler from its cells."""
    return count(window(connection, scaler, Stretch(), columns=0))


def series(connection: Connection, scaler: Scaler) -> WindowedSeries:
    """A scaler's updates. The scaler must have a stream."""
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
    """The cells of a scaler's updates in a stretch; see `windows.WindowedSeries.window`."""
    return series(connection, scaler).window(stretch, columns) if scaler.sources else empty()


def steps(connection: Connection, scaler: Scaler, stretch: Stretch) -> tuple[int, int]:
    """The steps of a stretch, end excluded. A stretch of time is looked up in the cells: (0, 0) without updates."""
    if stretch.by == "step":
        return stretch.start, stretch.stop
    cells = window(connection, scaler, stretch, columns=1)
    return (int(cells["first"].min()), int(cells["last"].max()) + 1) if len(cells) else (0, 0)
