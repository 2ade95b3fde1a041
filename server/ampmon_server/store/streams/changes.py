"""Finds the runs that changed, deleted ones included, so that each server process learns of the others' changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, func, select, tuple_, update

from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.schema.tables import runs, streams


Change: TypeAlias = tuple[UUID, int, int | None]
"""(run, version, last step)."""

PAGE = 1000


def since(connection: Connection, changed: int) -> list[Change]:
    """The runs whose version changed at or after ``changed``, in us since the epoch."""
    key = (runs.c.changed, runs.c.run_id)
    last: tuple[int, bytes] = (changed, b"")
    found: list[Change] = []
    while True:
        rows = _read(connection, tuple_(*key) > tuple_(*last), PAGE)
        found += map(_change, rows)
        if len(rows) < PAGE:
            return found
        last = (rows[-1].changed, rows[-1].run_id)


def of(connection: Connection, run_ids: Sequence[UUID]) -> list[Change]:
    """The requested runs, deleted ones included; unknown ones are left out."""
    found: list[Change] = []
    for first in range(0, len(run_ids), PAGE):
        some = [run_id.bytes for run_id in run_ids[first : first + PAGE]]
        found += map(_change, _read(connection, runs.c.run_id.in_(some), PAGE))
    return found


def held(connection: Connection, run_id: UUID) -> tuple[Any, ...] | None:
    """A key that changes whenever the stored data of a run does: by version, deletion or pruning. None if unknown."""
    of, left = runs.c, streams.c
    cuts = select(func.sum(left.rows_from + left.samples_from)).where(left.run_id == run_id.bytes)
    statement = select(of.version, of.deleted, cuts.scalar_subquery())
    row = connection.execute(statement.where(of.run_id == run_id.bytes)).one_or_none()
    return None if row is None else tuple(row)


def move_on(connection: Connection, run_id: UUID, now: int) -> Change:
    """Increment the version of a run, and lock its row until the transaction ends. Raises NotFound."""
    table = runs.c
    row = connection.execute(
        select(table.version, table.last_step)
        .where(table.run_id == run_id.bytes, table.deleted == 0)
        .with_for_update()
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no run {run_id}.")
    connection.execute(
        update(runs)
        .where(table.run_id == run_id.bytes)
        .values(version=row.version + 1, changed=now)
    )
    return run_id, row.version + 1, row.last_step


def _read(connection: Connection, which: ColumnElement[bool], limit: int) -> Sequence[Any]:
    table = runs.c
    return connection.execute(
        select(table.run_id, table.version, table.last_step, table.changed)
        .where(which)
        .order_by(table.changed, table.run_id)
        .limit(limit)
    ).all()


def _change(row: Any) -> Change:
    return UUID(bytes=row.run_id), row.version, row.last_step
