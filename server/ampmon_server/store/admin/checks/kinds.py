"""Lists the aggregated series of a run by kind, so that they can be checked against their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sqlalchemy import Connection, Table, select

from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.windows import WindowedSeries
from ampmon_server.store.samples import gradient_rollups, parameter_rollups
from ampmon_server.store.schema.tables import parameter_rollups as parameter_pages
from ampmon_server.store.schema.tables import scalar_pages, scalar_rollups, streams
from ampmon_server.store.streams.scalers import scalers_of
from ampmon_server.store.updates import rollups, scalars
from ampmon_server.store.updates.scalars import LoggedSeries


class Kind(NamedTuple):
    """One kind of series that is aggregated in one table."""

    table: Table
    """The table that holds its pages."""
    series: Callable[[Connection, bytes], Iterator[tuple[str, WindowedSeries]]]
    """Yields each series of a run with its name."""


def _updates(connection: Connection, run_id: bytes) -> Iterator[tuple[str, WindowedSeries]]:
    for scaler in scalers_of(connection, run_id):
        if scaler.sources:
            yield f"updates of scaler {scaler.name!r}", rollups.series(connection, scaler)


def _gradients(connection: Connection, run_id: bytes) -> Iterator[tuple[str, WindowedSeries]]:
    for scaler in scalers_of(connection, run_id):
        if scaler.sampled:
            yield (
                f"gradients of scaler {scaler.name!r}",
                gradient_rollups.series(connection, scaler),
            )


def _parameters(connection: Connection, run_id: bytes) -> Iterator[tuple[str, WindowedSeries]]:
    for scaler in scalers_of(connection, run_id):
        for source in scaler.sampled:
            if source.sampled:
                samples = parameter_rollups.stream_samples(connection, run_id, source)
                if not samples.names:
                    raise Damaged(f"the names of stream {source.number}'s parameters are missing")
                yield f"parameters of stream {source.number}", samples.series


def _scalars(connection: Connection, run_id: bytes) -> Iterator[tuple[str, WindowedSeries]]:
    table = streams.c
    statement = select(table.stream, table.rows_from).where(table.run_id == run_id)
    rows_from = dict(connection.execute(statement).all())
    named = {
        (stream, name)
        for held in (scalar_pages.c, scalar_rollups.c)
        for stream, name in connection.execute(
            select(held.stream, held.name).distinct().where(held.run_id == run_id)
        )
    }
    for stream, name in sorted(named):
        if stream in rows_from:  # `strays` reports the others
            of = LoggedSeries(run_id, stream, rows_from[stream])
            yield f"scalar {name!r} of stream {stream}", scalars.series(connection, of, name)


KINDS = (
    Kind(rollups.UPDATES.table, _updates),
    Kind(gradient_rollups.GRADIENTS.table, _gradients),
    Kind(parameter_pages, _parameters),
    Kind(scalars.SCALARS.table, _scalars),
)
"""All kinds. They are verified, and must be sound before the rows below them are pruned."""
