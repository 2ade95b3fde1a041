"""The row of a run as ingest changes it: identity, totals and what is so now. One read, one write per transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import ColumnElement, Connection, bindparam, or_, select, update

from ampmon import wire
from ampmon_server.model.aggregates.updates import Counts
from ampmon_server.store.engine.engine import insert_rows
from ampmon_server.store.schema.tables import runs


SILENT_AFTER_US = 60 * 1_000_000
SILENT_AFTER_UPDATES = 10
_SMOOTHING = 0.1


@dataclass(slots=True)
class RunState:
    """Columns of `tables.runs`, by their names there."""

    run_id: bytes
    project: str
    name: str
    owner: str
    tags: str
    started: int
    archived: int = 0
    deleted: int = 0
    state: str = "running"
    silent_after: int = 0
    version: int = 0
    updates: int = 0
    skipped: int = 0
    sampled: int = 0
    records: int = 0
    lost: int = 0
    errors: int = 0
    dropped: int = 0
    disabled: int = 0
    exact: int = 1
    parameters: int = 0
    ranks: int = 0
    attempts: int = 0
    streams: str = "[]"
    last_step: int | None = None
    last_time: int | None = None
    scale: float | None = None
    scale_kind: int = 0
    zero_fraction: float | None = None
    subnormal_fraction: float | None = None
    zero_fraction_error: float | None = None
    subnormal_fraction_error: float | None = None
    headroom_bits: float | None = None
    headroom_kind: int = 0
    sampling_interval: int | None = None
    budget: float | None = None
    over_budget: int = 0
    update_us: float = 0.0
    duration_us: float = 0.0
    cost_us: float = 0.0
    changed: int = 0
    thinned: int = 0
    rivals: int = 0
    forgotten: int = 0
    window_ms: int | None = None
    window_why: str | None = None
    scheduled: int = 0
    verdict: str | None = None
    severity: str | None = None
    findings: str | None = None
    firing: int = 0
    alerts_due: int | None = None
    measurement: int | None = None

    @classmethod
    def of(cls, header: wire.AttemptHeader, owner: str | None = None) -> RunState:
        """A run as the first of its attempts describes it; whose it is stays as it is here."""
        whose = header.owner if owner is None else owner
        state = cls(header.run_id.bytes, "", "", whose, "[]", header.started)
        state.describe(header)
        return state

    def describe(self, header: wire.AttemptHeader) -> None:
        """Take name, project and tags from an attempt."""
        self.project, self.name = header.project, header.name
        self.tags = orjson.dumps(header.tags).decode()

    def count(self, change: Counts) -> None:
        self.updates += change.updates
        self.skipped += change.skipped
        self.sampled += change.sampled

    def typical_update(self, median_us: float, updates: int) -> None:
        """Note the median duration of some new updates: few of them move what is held only a little."""
        share = 1.0 if self.update_us == 0.0 else 1.0 - (1.0 - _SMOOTHING) ** updates
        self.update_us += share * (median_us - self.update_us)

    def advance(self, now: int) -> None:
        """Something new is stored: another version, and another wait until silence is worth a word."""
        self.version += 1
        self.changed = now
        self.silent_after = now + min(_silence_us(self.update_us), wire.COUNT_MAX - now)


def heard(row: Any) -> int:
    """When something new of a run (its row, or state) was stored last, by the server's clock."""
    at: int = row.silent_after - _silence_us(row.update_us)
    return at


def heard_before(us: int) -> ColumnElement[bool]:
    """Whether nothing new of a run was stored at this time or later: `heard`, in SQL."""
    table = runs.c
    return or_(
        table.silent_after - SILENT_AFTER_US < us,
        table.silent_after - SILENT_AFTER_UPDATES * table.update_us < us,
    )


def _silence_us(update_us: float) -> int:
    """From when something is stored until silence is worth a word."""
    return int(max(SILENT_AFTER_US, SILENT_AFTER_UPDATES * update_us))


_NAMES = tuple(column.name for column in runs.columns)
_LOCKING = select(runs).where(runs.c.run_id == bindparam("of")).with_for_update()


def lock(connection: Connection, run_id: UUID) -> RunState | None:
    """The run's row, held until the transaction ends; None for a run that is not known."""
    row = connection.execute(_LOCKING, {"of": run_id.bytes}).one_or_none()
    return RunState(**row._mapping) if row else None


def begin(connection: Connection, header: wire.AttemptHeader, owner: str | None = None) -> RunState:
    """The row of a run that was not known, made and held; where another server has just made it, that one's.

    It belongs to ``owner``, or else to whom the header names.
    """
    state = RunState.of(header, owner)
    # Waits for the other's commit, which the next statement then sees.
    insert_rows(connection, runs, [_row(state)])
    return lock(connection, header.run_id) or state


def move_on(connection: Connection, run_id: UUID) -> None:
    """Move a run's version on where something other than ingest has changed what is held of it."""
    statement = update(runs).where(runs.c.run_id == run_id.bytes)
    connection.execute(statement.values(version=runs.c.version + 1))


def save(connection: Connection, state: RunState) -> None:
    """Write back the row of a run that is there."""
    insert_rows(connection, runs, [_row(state)], replace=True)


def _row(state: RunState) -> tuple[Any, ...]:
    return tuple(getattr(state, name) for name in _NAMES)
