"""The row of a run as ingest changes it, and the runs that changed, so that each server process learns of them."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import orjson
from sqlalchemy import Column, Connection, Row, bindparam, select, update

from ampmon import wire
from ampmon_server.model.aggregates.updates import Counts
from ampmon_server.store.engine.errors import Damaged, NotFound
from ampmon_server.store.engine.rows import checked, fetch, insert_rows
from ampmon_server.store.schema.tables import runs


SILENT_AFTER_US = 60 * 1_000_000
SILENT_AFTER_UPDATES = 10
_SMOOTHING = 0.1


_NEW = {str(column.name): getattr(column.default, "arg", None) for column in runs.columns}


class RunState:
    """A row of `tables.runs`, each column as an attribute. Those that are not given have their defaults."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, **given: Any) -> None:
        vars(self).update(_NEW | given)

    @classmethod
    def of(cls, header: wire.AttemptHeader, owner: str | None = None) -> RunState:
        """A new run as its first attempt describes it. Later attempts do not change its owner."""
        whose = header.owner if owner is None else owner
        state = cls(run_id=header.run_id.bytes, owner=whose, started=header.started)
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
        """Smooth the median duration of new updates into the typical one; few updates change it only a little."""
        share = 1.0 if self.update_us == 0.0 else 1.0 - (1.0 - _SMOOTHING) ** updates
        self.update_us += share * (median_us - self.update_us)

    def advance(self, now: int) -> None:
        """Note that new data is stored: increment the version and restart the time until the run counts as silent."""
        self.version += 1
        self.changed = now
        # An update may claim any duration up to 2**53 us, but JSON must hold the sum exactly.
        self.silent_after = now + min(_silence_us(self.update_us), wire.COUNT_MAX - now)


def heard(row: Any) -> int:
    """When new data of a run was last stored, by the server's clock. ``row`` is its row or its `RunState`."""
    # Not from `changed`, which edits and alerts move too.
    at: int = row.silent_after - _silence_us(row.update_us)
    return at


def _silence_us(update_us: float) -> int:
    """How long after new data a run counts as silent."""
    return int(max(SILENT_AFTER_US, SILENT_AFTER_UPDATES * update_us))


SUMMARY_COLUMNS = tuple(column for column in runs.c if column.name != "findings")
"""Without findings, which may be long and appear in no list."""

_LOCKING = select(runs).where(runs.c.run_id == bindparam("of")).with_for_update()
row_of: Callable[[RunState], tuple[Any, ...]] = attrgetter(*_NEW)
"""Return the row of a run, in the order of the table's columns."""


def lock(connection: Connection, run_id: UUID) -> RunState | None:
    """Lock and return the row of a run until the transaction ends; None for an unknown run. Raises Damaged."""
    found = fetch(connection, _LOCKING, {"of": run_id.bytes})
    if not found:
        return None
    state = RunState()
    vars(state).update(zip(_NEW, found[0], strict=True))
    # Senders drop the records of deleted runs, so the flag must be certain.
    if state.deleted not in {0, 1}:
        raise Damaged(f"run {run_id} is neither deleted nor not")
    return state


def begin(connection: Connection, header: wire.AttemptHeader, owner: str | None = None) -> RunState:
    """Create, lock and return the row of an unknown run. If another server has just created it, return that row.

    The run belongs to ``owner``, or if that is None to the owner that the header names.
    """
    state = RunState.of(header, owner)
    # Waits for the commit of a server that creates the same run; the next statement then sees its row.
    insert_rows(connection, runs, [row_of(state)])
    return lock(connection, header.run_id) or state


def find(
    connection: Connection, run_id: UUID, *columns: Column[Any], held: bool = False
) -> Row[Any]:
    """Return some columns of a run, or all that a summary needs. Raises NotFound, Damaged.

    With ``held``, lock its row until the transaction ends.
    """
    wanted = columns or SUMMARY_COLUMNS
    statement = select(*wanted).where(runs.c.run_id == run_id.bytes, runs.c.deleted == 0)
    row = connection.execute(statement.with_for_update() if held else statement).one_or_none()
    if row is None:
        raise NotFound(f"There is no run {run_id}.")
    return checked(wanted, row)


def increment_version(connection: Connection, run_id: UUID) -> None:
    """Increment a run's version after something other than ingest has changed its data."""
    statement = update(runs).where(runs.c.run_id == run_id.bytes)
    connection.execute(statement.values(version=runs.c.version + 1))


def save(connection: Connection, state: RunState) -> None:
    """Write back the row of an existing run."""
    insert_rows(connection, runs, [row_of(state)], replace=True)


class Advance(NamedTuple):
    """A run has reached a version. ``step`` is its last step, if it has any."""

    run_id: UUID
    version: int
    step: int | None


def changed_since(connection: Connection, changed: int) -> list[Advance]:
    """The runs whose version changed at or after ``changed``, in us since the epoch."""
    columns = runs.c.run_id, runs.c.version, runs.c.last_step
    listed = select(*columns).where(runs.c.changed >= changed)
    rows = connection.execute(listed.order_by(runs.c.changed, runs.c.run_id))
    return [Advance(UUID(bytes=run_id), version, step) for run_id, version, step in rows]


_HELD = select(runs.c.version, runs.c.changed).where(runs.c.run_id == bindparam("of"))


def held(connection: Connection, run_id: UUID) -> tuple[Any, ...] | None:
    """A key that changes whenever the stored data of a run does, also by deletion or pruning. None if unknown."""
    found = fetch(connection, _HELD, {"of": run_id.bytes})
    return found[0] if found else None


def move_on(connection: Connection, run_id: UUID, now: int, **values: Any) -> Advance:
    """Increment the version of a run, set ``values``, and lock its row until the transaction ends. Raises NotFound."""
    table = runs.c
    row = find(connection, run_id, table.version, table.last_step, held=True)
    connection.execute(
        update(runs)
        .where(table.run_id == run_id.bytes)
        .values(version=row.version + 1, changed=now, **values)
    )
    return Advance(run_id, row.version + 1, row.last_step)
