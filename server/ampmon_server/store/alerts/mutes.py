"""Stores mutes: rules that send no alerts for one run, one project or everywhere. There are few rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    delete,
    exists,
    insert,
    or_,
    select,
)

from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.schema.global_tables import mutes


KEPT_US = 7 * 24 * 3600 * 1_000_000
"""How long an ended mute stays listed."""


@dataclass(frozen=True, slots=True)
class Mute:
    """Alerts that are not sent. None means any run, project or rule, or for ever. Times are us since the epoch.

    ``made`` and ``made_by`` are set when it is stored.
    """

    run_id: UUID | None
    project: str | None
    rule: str | None
    until: int | None
    made: int = 0
    made_by: str = ""
    mute_id: UUID = field(default_factory=uuid4)

    def holds(self, run_id: UUID, project: str, now: int) -> bool:
        """Whether the mute applies to a run now, for the rules that it covers. `muted` is the same in SQL."""
        of_run = self.run_id in {None, run_id} and self.project in {None, project}
        return of_run and (self.until is None or self.until > now)


def keep(connection: Connection, mute: Mute) -> Mute:
    """Store a mute and return it as stored.

    It replaces a mute of the same run, project and rule, and takes over its id.
    """
    run_id = None if mute.run_id is None else mute.run_id.bytes
    of = mutes.c
    same = (of.of_run == run_id, of.project == mute.project, of.rule == mute.rule)
    earlier = connection.scalar(select(of.mute_id).where(*same))
    kept = mute if earlier is None else replace(mute, mute_id=UUID(bytes=earlier))
    # Not as an upsert: in a unique key, two nulls, which mean any, are not equal.
    connection.execute(delete(mutes).where(*same))
    alike = {name: getattr(mute, name) for name in ("project", "rule", "until", "made", "made_by")}
    row = {"mute_id": kept.mute_id.bytes, "of_run": run_id, **alike}
    connection.execute(insert(mutes).values(row))
    return kept


def find(connection: Connection, mute_id: UUID) -> Mute:
    """Return the mute with this id. Raises NotFound."""
    row = connection.execute(select(mutes).where(mutes.c.mute_id == mute_id.bytes)).one_or_none()
    if row is None:
        raise NotFound(f"There is no mute {mute_id}.")
    return _mute(row)


def lift(connection: Connection, mute_id: UUID) -> None:
    """Delete a mute, so that alerts are sent again."""
    connection.execute(delete(mutes).where(mutes.c.mute_id == mute_id.bytes))


def read_all(connection: Connection, within: Collection[str] | None) -> list[Mute]:
    """Return the mutes that apply to all projects or to one in ``within``, newest first. None returns all mutes."""
    project = mutes.c.project
    touching = [] if within is None else [or_(project.is_(None), project.in_(within))]
    rows = connection.execute(
        select(mutes).where(*touching).order_by(mutes.c.made.desc(), mutes.c.mute_id)
    )
    return [_mute(row) for row in rows]


def of_run(connection: Connection, run_id: bytes, project: str, now: int) -> list[Mute]:
    """Return the mutes that apply to a run now, newest first."""
    found = read_all(connection, [project])
    return [mute for mute in found if mute.holds(UUID(bytes=run_id), project, now)]


def muted(
    run_id: Column[bytes], project: Column[str], rule: Column[str], now: int
) -> ColumnElement[bool]:
    """Return the SQL condition that a mute applies now to the run, project and rule in these columns."""
    table = mutes.c
    return exists().where(
        or_(table.of_run == run_id, table.of_run.is_(None)),
        or_(table.project == project, table.project.is_(None)),
        or_(table.rule == rule, table.rule.is_(None)),
        or_(table.until.is_(None), table.until > now),
    )


def forget(connection: Connection, run_id: bytes) -> None:
    """Delete the mutes of one run."""
    connection.execute(delete(mutes).where(mutes.c.of_run == run_id))


def tidy(connection: Connection, now: int) -> None:
    """Delete mutes that ended more than `KEPT_US` ago."""
    connection.execute(delete(mutes).where(mutes.c.until < now - KEPT_US))


def _mute(row: Row[Any]) -> Mute:
    run_id = None if row.of_run is None else UUID(bytes=row.of_run)
    mute_id = UUID(bytes=row.mute_id)
    return Mute(run_id, row.project, row.rule, row.until, row.made, row.made_by, mute_id)
