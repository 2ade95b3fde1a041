"""Finds stray rows: rows without a run, of a deleted run, or without a stream."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import Column, Connection, Table, delete, func, select, text

from ampmon_server.store.admin import derived
from ampmon_server.store.admin.defect import DELETE, RESTORE, Defect
from ampmon_server.store.admin.removing import DATA, Removal
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.schema.tables import runs, streams


def integrity(connection: Connection) -> Iterator[Defect]:
    """Yield defects that SQLite's own integrity check finds. PostgreSQL keeps checksums itself, so it yields none."""
    if connection.dialect.name == "sqlite":
        for (line,) in connection.execute(text("PRAGMA integrity_check(20)")):
            if line != "ok":
                yield Defect("the file", " ".join(line.split()), RESTORE)


def of_no_run(connection: Connection) -> Iterator[Defect]:
    """Yield rows whose run does not exist or is deleted."""
    for table, run_id, deleted in _unowned(connection):
        counted = select(func.count()).select_from(table).where(table.c.run_id == run_id)
        what = f"{connection.scalar(counted)} rows belong to {'a deleted' if deleted else 'no'} run"
        named = str(UUID(bytes=run_id)) if len(run_id) == 16 else run_id.hex()
        remedy = DELETE if _is_removable(table, deleted) else RESTORE
        yield Defect(f"run {named}, {table.name}", what, remedy)


def removals(connection: Connection) -> list[Removal]:
    """Return the removals of the data of deleted runs, and of pages of cells that belong to no run."""
    return [
        Removal(table, table.c.run_id == run_id)
        for table, run_id, deleted in _unowned(connection)
        if _is_removable(table, deleted)
    ]


def _is_removable(table: Table, deleted: bool) -> bool:
    return deleted or table in derived.SERIES


def _unowned(connection: Connection) -> Iterator[tuple[Table, bytes, bool]]:
    """Yield each table with the ids of runs that do not exist or are deleted, and whether they are deleted."""
    everyone = select(runs.c.run_id, runs.c.deleted)
    known: dict[bytes, int] = dict(connection.execute(everyone).all())
    for table in DATA:
        for run_id in _run_ids(connection, table.c.run_id):
            if known.get(run_id, 1):
                yield table, run_id, run_id in known


def _run_ids(connection: Connection, column: Column[bytes]) -> Iterator[bytes]:
    """Each run id once, in order. Jumps from id to id in the index, so the number of rows does not matter."""
    # Not min(): PostgreSQL before 18 has no min() for bytea.
    first = select(column).order_by(column).limit(1)
    found = connection.scalar(first)
    while found is not None:
        yield found
        found = connection.scalar(first.where(column > found))


def of_no_stream(connection: Connection, run_id: bytes) -> Iterator[Defect]:
    """Yield rows of a run whose stream does not exist, and pages of a stream that should have none."""
    for table, known in _streams(connection, run_id):
        of = select(table.c.stream, func.count()).where(table.c.run_id == run_id)
        for stream, rows in connection.execute(of.group_by(table.c.stream)):
            if stream not in known:
                remedy = DELETE if table in derived.SERIES else RESTORE
                what = f"{rows} rows belong to no stream"
                yield Defect(f"{table.name}, stream {stream}", what, remedy)


def sweep(connection: Connection, run_id: bytes) -> None:
    """Delete the pages of cells of a run that belong to no stream. Never deletes recorded data."""
    for table, known in _streams(connection, run_id):
        if table in derived.SERIES:
            stray = (table.c.run_id == run_id) & table.c.stream.not_in(known)
            connection.execute(delete(table).where(stray))


def _streams(connection: Connection, run_id: bytes) -> Iterator[tuple[Table, set[int]]]:
    """Each table with a stream column, and the streams that may occur in it."""
    every = set(connection.scalars(select(streams.c.stream).where(streams.c.run_id == run_id)))
    for table in DATA:
        if "stream" not in table.c or table is streams:
            continue
        try:
            of_cells = derived.SERIES.get(table)
            found = of_cells(connection, run_id) if of_cells else None
            known = every if found is None else {series.key[1] for _, series in found}
        except Damaged:  # the check of the cells reports it
            known = every
        yield table, known
