"""Rolls up sampled gradients: ingest recomputes the cells, and figures read them.

Cells cover a scaler over all ranks and attempts, like `samples.read_series`. Sharded gradients are added up at the
steps that every rank of the attempt has sampled. Replicated gradients are those of the lowest rank that samples, or of
the lowest rank if another attempt is sharded.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import Connection

from ampmon_server.model.aggregates.gradients import LAYOUT, empty, of_series
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages.pyramid import Pyramid
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.samples.samples import Change, next_step, read_series
from ampmon_server.store.schema.tables import gradient_rollups, gradient_totals
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import Scaler, StreamSource, shards


GRADIENTS = Pyramid(gradient_rollups, LAYOUT.dtype, LAYOUT.merge, rows_per_cell=2)


def note(
    connection: Connection, scaler: Scaler, stream: StreamSource, attempt: Attempt, change: Change
) -> None:
    """Rebuild the cells that a batch of one rank's updates has changed, and those of pages that it completed.

    Shards of a step are added up when the last rank's sample of it arrives, so that each rank's batch does not read
    the samples of all other ranks again.
    """
    if change.begins and _changes_all(scaler, stream):
        series(connection, scaler).roll_up(0, scaler.edge - 1)
        return
    changed = change.redone or (
        change.sampled and _is_last(connection, scaler, stream, attempt, change.first)
    )
    before = change.scaler_edge
    if changed:
        series(connection, scaler).refresh(change.first, change.last, before)
    elif scaler.edge > before and any(source.sampled for source in scaler.sampled):
        first = _following(connection, scaler, before)
        if first is not None and first < scaler.edge:
            series(connection, scaler).roll_up(before, scaler.edge - 1)


def _changes_all(scaler: Scaler, stream: StreamSource) -> bool:
    """Whether the first samples of this stream change which samples represent the scaler."""
    others = [source for source in scaler.sources if source.number != stream.number]
    if scaler.is_sharded:
        return any(source.sampled for source in others)
    return any(source.sampled and source.rank > stream.rank for source in others)


def _is_last(
    connection: Connection, scaler: Scaler, stream: StreamSource, attempt: Attempt, first: int
) -> bool:
    """Whether a stream's samples from ``first`` on may be the last missing ones of the ranks that started with it."""
    if scaler.is_sharded:
        count = shards(connection, scaler)[attempt.number]
        return all(
            each.last_step is not None and each.last_step >= first
            for each in scaler.sampled[:count]
        )
    return any(source.number == stream.number for source in scaler.sampled)


def _following(connection: Connection, scaler: Scaler, step: int) -> int | None:
    numbers = [source.number for source in scaler.sampled]
    return next_step(connection, gradient_totals, scaler.run_id, numbers, step)


def series(connection: Connection, scaler: Scaler) -> WindowedSeries:
    """A scaler's samples. The scaler must have a stream."""
    return WindowedSeries(
        connection,
        GRADIENTS,
        (scaler.run_id, scaler.number),
        partial(read_cells, connection, scaler),
        scaler.samples_from,
        scaler.edge,
        partial(_following, connection, scaler),
    )


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's samples in a stretch; see `windows.WindowedSeries.window`."""
    return series(connection, scaler).window(stretch, columns) if scaler.sampled else empty()


def read_cells(connection: Connection, scaler: Scaler, first: int, last: int) -> Cells:
    """The samples from step ``first`` to ``last``, both included, as one cell per sample."""
    last = min(last, INTEGER_MAX)
    return of_series(read_series(connection, scaler, start=first, stop=last + 1))
