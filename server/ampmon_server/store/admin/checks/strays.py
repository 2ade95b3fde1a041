"""Finds stray rows: rows without a run, of a deleted run, or without a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Connection, Table, delete, func, select, text

from ampmon_server.store.admin.checks.finding import RESTORE, Defect
from ampmon_server.store.admin.checks.kinds import KINDS, Kind
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.schema.tables import metadata, runs, streams


DELETE = "ampmon db verify --repair deletes them"
_DATA = [table for table in metadata.sorted_tables if table is not runs and "run_id" in table.c]
_ROLLED = {table for table in _DATA if "level" in table.c}
_OF_STREAMS = [table for table in _DATA if "stream" in table.c and table is not streams]


def integrity(connection: Connection) -> Iterator[Defect]:
    """Yield defects that SQLite's own integrity check finds. PostgreSQL keeps checksums itself, so it yields none."""
    if connection.dialect.name == "sqlite":
        for (line,) in connection.execute(text("PRAGMA integrity_check(20)")):
            if line != "ok":
                yield Defect("the file", " ".join(line.split()), RESTORE)


def of_no_run(connection: Connection) -> Iterator[Defect]:
    """Yield rows whose run does not exist or is deleted."""
    everyone = select(runs.c.run_id, runs.c.deleted)
    known: dict[bytes, int] = dict(connection.execute(everyone).all())
    for table in _DATA:
        for run_id in _run_ids(connection, table.c.run_id):
            if known.get(run_id, 1):
                counted = select(func.count()).select_from(table).where(table.c.run_id == run_id)
                deleted = run_id in known
                what = f"{connection.scalar(counted)} rows belong to {'a deleted' if deleted else 'no'} run"
                place = f"run {_named(run_id)}, {table.name}"
                yield Defect(place, what, DELETE if deleted or table in _ROLLED else RESTORE)


def _run_ids(connection: Connection, column: Column[Any]) -> Iterator[bytes]:
    """Each run id once, in order. Jumps from id to id in the index, so the number of rows does not matter."""
    # Not min(): PostgreSQL before 18 has no min() for bytea.
    first = select(column).order_by(column).limit(1)
    found = connection.scalar(first)
    while found is not None:
        yield found
        found = connection.scalar(first.where(column > found))


def _named(run_id: bytes) -> str:
    return str(UUID(bytes=run_id)) if len(run_id) == 16 else run_id.hex()


def of_no_stream(connection: Connection, run_id: bytes, where: str) -> Iterator[Defect]:
    """Yield rows of a run whose stream does not exist, and pages of a stream that should have none."""
    for table, known in _streams(connection, run_id):
        of = select(table.c.stream, func.count()).where(table.c.run_id == run_id)
        for stream, rows in connection.execute(of.group_by(table.c.stream)):
            if stream not in known:
                place = f"{where}, {table.name}, stream {stream}"
                remedy = DELETE if table in _ROLLED else RESTORE
                yield Defect(place, f"{rows} rows belong to no stream", remedy)


def _streams(connection: Connection, run_id: bytes) -> Iterator[tuple[Table, set[int]]]:
    """Each table with a stream column, and the streams that may occur in it."""
    known = set(connection.scalars(select(streams.c.stream).where(streams.c.run_id == run_id)))
    rolled = {kind.table: kind for kind in KINDS}
    for table in _OF_STREAMS:
        kind = rolled.get(table)
        try:
            yield table, known if kind is None else _rolled(kind, connection, run_id)
        except Damaged:  # the check of the cells reports it
            yield table, known


def _rolled(kind: Kind, connection: Connection, run_id: bytes) -> set[int]:
    return {series.key[1] for _, series in kind.series(connection, run_id)}


def sweep(connection: Connection, run_id: bytes) -> None:
    """Delete the aggregate pages of a run that belong to no stream. Never deletes recorded data."""
    for table, known in _streams(connection, run_id):
        if table in _ROLLED:
            stray = (table.c.run_id == run_id) & table.c.stream.not_in(known)
            connection.execute(delete(table).where(stray))


def sweep_runs(connection: Connection) -> None:
    """Delete the data of deleted runs, and aggregate pages that belong to no run."""
    for table in _DATA:
        living = select(runs.c.run_id)
        if table not in _ROLLED:
            gone = table.c.run_id.in_(living.where(runs.c.deleted == 1))
        else:
            gone = table.c.run_id.not_in(living.where(runs.c.deleted == 0))
        connection.execute(delete(table).where(gone))
