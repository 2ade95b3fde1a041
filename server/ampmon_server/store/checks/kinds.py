"""What is rolled up of a run: the series of each kind, as they are held to their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, Table, select

from ampmon_server.store import gradient_rollups, parameter_rollups, rollups, scalars
from ampmon_server.store.checks.cells import Series
from ampmon_server.store.errors import Damaged
from ampmon_server.store.scalars import Logged
from ampmon_server.store.scalers import scalers_of
from ampmon_server.store.updates import next_step, read_cells
from ampmon_server.tables import parameter_rollups as parameter_pages
from ampmon_server.tables import scalar_pages, scalar_rollups, streams


class Kind(NamedTuple):
    """One kind of series that is rolled up in one table."""

    table: Table
    """Its pages."""
    series: Callable[[Connection, bytes], Iterator[Series]]


def _updates(connection: Connection, run_id: bytes) -> Iterator[Series]:
    for scaler in scalers_of(connection, run_id):
        if scaler.sources:
            yield Series(
                f"updates of scaler {scaler.name!r}",
                rollups.UPDATES,
                (run_id, scaler.number),
                partial(read_cells, connection, scaler),
                partial(next_step, connection, scaler),
                scaler.rows_from,
                scaler.edge,
            )


def _gradients(connection: Connection, run_id: bytes) -> Iterator[Series]:
    for scaler in scalers_of(connection, run_id):
        if scaler.sampled:
            yield Series(
                f"gradients of scaler {scaler.name!r}",
                gradient_rollups.GRADIENTS,
                (run_id, scaler.number),
                partial(gradient_rollups.read_cells, connection, scaler),
                partial(gradient_rollups.next_step, connection, scaler),
                scaler.samples_from,
                scaler.edge,
            )


def _parameters(connection: Connection, run_id: bytes) -> Iterator[Series]:
    for scaler in scalers_of(connection, run_id):
        for source in scaler.sampled:
            if source.sampled:
                told = parameter_rollups.told(connection, run_id, source)
                if not told.names:
                    raise Damaged(f"the names of stream {source.number}'s parameters are not held")
                yield Series(
                    f"parameters of stream {source.number}",
                    told.pyramid,
                    told.key,
                    told.rows,
                    partial(parameter_rollups.next_step, connection, run_id, source),
                    source.samples_from,
                    source.edge,
                )


def _scalars(connection: Connection, run_id: bytes) -> Iterator[Series]:
    table = streams.c
    told = select(table.stream, table.rows_from).where(table.run_id == run_id)
    rows_from = dict(connection.execute(told).all())
    named = {
        (stream, name)
        for held in (scalar_pages.c, scalar_rollups.c)
        for stream, name in connection.execute(
            select(held.stream, held.name).distinct().where(held.run_id == run_id)
        )
    }
    for stream, name in sorted(named):
        if stream not in rows_from:  # which is a finding of its own
            continue
        of = Logged(run_id, stream, rows_from[stream])
        yield Series(
            f"scalar {name!r} of stream {stream}",
            scalars.SCALARS,
            of.key(name),
            partial(scalars.read_cells, connection, of, name),
            partial(scalars.next_step, connection, of, name),
            *scalars.span_of(connection, of, name),
        )


KINDS = (
    Kind(rollups.UPDATES.table, _updates),
    Kind(gradient_rollups.GRADIENTS.table, _gradients),
    Kind(parameter_pages, _parameters),
    Kind(scalars.SCALARS.table, _scalars),
)
"""Every kind there is: what is verified, and what has to be sound before the rows below it are pruned."""
