"""Sampled gradients rolled up: what ingest recomputes of them, and what figures read.

They are of a scaler over all ranks and attempts, as `samples.read_series` has them: of sharded gradients the steps that
every rank there was has sampled, added up, else the lowest rank's that samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from ampmon_server.model.aggregates.gradients import LAYOUT, empty, of_series
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages import sparse
from ampmon_server.store.pages.pages import unsealed
from ampmon_server.store.pages.pyramid import Pyramid
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.samples.samples import read_series
from ampmon_server.store.schema.tables import gradient_rollups, gradient_totals
from ampmon_server.store.streams.attempts import Attempt, world_sizes
from ampmon_server.store.streams.roster import Roster
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.streams.streams import IngestStream


class Edges(NamedTuple):
    """The edges of a scaler and of one of its streams before a batch: what lies before them is rolled up."""

    scaler: int
    stream: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a batch did to a stream: updates from step ``first`` to ``last``.

    ``redone``: among them are steps that it had done before. ``sampled``: one of them at least was sampled.
    ``begins``: and none was before.
    """

    first: int
    last: int
    edges: Edges
    redone: bool
    sampled: bool
    begins: bool

    def rolls(self, before: int, edge: int, *, changed: bool) -> Range | None:
        """The steps whose cells are to be made anew, where ``before`` the batch the edge was another.

        ``changed``: among the batch's own there are some.
        """
        first = self.first if changed else before
        return unsealed(first, self.last, before, edge) if changed or edge > before else None


GRADIENTS = Pyramid(gradient_rollups, LAYOUT.dtype, LAYOUT.merge, rows_per_cell=2)


def note(
    connection: Connection, roster: Roster, stream: IngestStream, attempt: Attempt, change: Change
) -> None:
    """Make those cells anew that a batch of one rank's updates has changed, and those of pages that it has ended.

    Of sharded gradients a step is added up when the last rank's sample of it has come, so that one rank's batch does
    not have those of all others read again and again.
    """
    scaler = roster.scaler(stream.scaler)
    if change.begins and _changes_all(scaler, stream):
        series(connection, scaler).roll_up(0, scaler.edge - 1)
        return
    changed = change.redone or (
        change.sampled and _is_last(connection, scaler, stream, attempt, change.first)
    )
    rolls = change.rolls(change.edges.scaler, scaler.edge, changed=changed)
    if rolls is not None and (changed or _some(connection, scaler, *rolls)):
        series(connection, scaler).roll_up(*rolls)


def _some(connection: Connection, scaler: Scaler, first: int, last: int) -> bool:
    """Whether there may be a sample from step ``first`` to ``last``."""
    if not any(source.sampled for source in scaler.sampled):
        return False
    found = next_step(connection, scaler, first)
    return found is not None and found <= last


def _changes_all(scaler: Scaler, stream: IngestStream) -> bool:
    """Whether what is sampled of a scaler is other than before now that this stream has samples."""
    others = [source for source in scaler.sources if source.number != stream.number]
    if scaler.is_sharded:
        return any(source.sampled for source in others)
    return any(source.sampled and source.rank > stream.rank for source in others)


def _is_last(
    connection: Connection, scaler: Scaler, stream: IngestStream, attempt: Attempt, first: int
) -> bool:
    """Whether a stream's samples from ``first`` on may be those that were missing of the ranks that started with it."""
    if scaler.is_sharded:
        size = world_sizes(connection, scaler.run_id)[attempt.number]
        return all(
            each.last_step is not None and each.last_step >= first
            for each in scaler.sampled[: scaler.shards(size)]
        )
    return any(source.number == stream.number for source in scaler.sampled)


def next_step(connection: Connection, scaler: Scaler, first: int) -> int | None:
    """The first step from ``first`` on at which there may be a sample."""
    table = gradient_totals.c
    found = connection.scalar(
        select(func.min(table.first_step)).where(
            table.run_id == scaler.run_id,
            table.stream.in_([source.number for source in scaler.sampled]),
            table.last_step >= first,
        )
    )
    return None if found is None else max(found, first)


def series(connection: Connection, scaler: Scaler) -> sparse.SparseSeries:
    """A scaler's samples; of a scaler with streams."""
    return sparse.SparseSeries(
        connection,
        GRADIENTS,
        (scaler.run_id, scaler.number),
        partial(read_cells, connection, scaler),
        scaler.samples_from,
        scaler.edge,
        partial(next_step, connection, scaler),
    )


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's samples in a stretch, as `windows.WindowedSeries.window` finds them."""
    return series(connection, scaler).window(stretch, columns) if scaler.sampled else empty()


def read_cells(connection: Connection, scaler: Scaler, first: int, last: int) -> Cells:
    """The samples from step ``first`` to ``last``, both included, as cells of one."""
    last = min(last, INTEGER_MAX)
    return of_series(read_series(connection, scaler, start=first, stop=last + 1))
