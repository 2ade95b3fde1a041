"""Verifies a database run by run, and optionally repairs derived data, for `ampmon db verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Engine, Row, select
from sqlalchemy.exc import DatabaseError

from ampmon_server.settings import Settings
from ampmon_server.store.admin import derived, recorded, removing, strays
from ampmon_server.store.admin.defect import RESTORE, Defect
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.errors import Busy, NotFound
from ampmon_server.store.engine.opening import Opened
from ampmon_server.store.schema.tables import runs
from ampmon_server.store.streams import state as run_state


@dataclass(frozen=True, slots=True)
class Verification:
    """A database opened for verification. Each run is read from one snapshot; servers may run meanwhile."""

    _opened: Opened

    @classmethod
    @contextmanager
    def begin(cls, settings: Settings, *, repair: bool = False) -> Iterator[Verification]:
        """Open the database, without changing it unless ``repair`` is set. Raises Unusable.

        With ``repair``, lock an SQLite file until the end of the block, and upgrade its schema if it is older.
        """
        with closing(opening.open_beside(settings, alone=repair)) as opened:
            yield cls(opened)

    @property
    def database(self) -> str:
        """Names the database without any secret."""
        return self._opened.name

    def runs(self, only: UUID | None = None) -> list[UUID]:
        """Return all runs, oldest first, or the run ``only``. Raises NotFound and Busy."""
        known = select(runs.c.run_id).where(runs.c.deleted == 0).order_by(runs.c.started)
        if only is not None:
            known = known.where(runs.c.run_id == only.bytes)
        with _reading(self._opened.engine) as connection:
            found = [UUID(bytes=each) for each in connection.scalars(known)]
        if only is not None and not found:
            raise NotFound(f"There is no run {only}.")
        return found

    def broken(self) -> list[Defect]:
        """Return defects of the file itself. If there are any, nothing else can be checked. Raises Busy."""
        try:
            with _reading(self._opened.engine) as connection:
                return list(strays.integrity(connection))
        except Busy as busy:
            cause = busy.__cause__
            if type(cause) is not DatabaseError:  # a damaged file raises no subclass of it
                raise
            return [Defect(self.database, str(cause.orig), RESTORE)]

    def strays(self) -> list[Defect]:
        """Return rows that belong to no run, as defects. Raises Busy."""
        with _reading(self._opened.engine) as connection:
            return list(strays.of_no_run(connection))

    def run(self, run_id: UUID) -> list[Defect]:
        """Return the defects of a run; none if it was deleted meanwhile. Raises Busy."""
        with _reading(self._opened.engine) as connection:
            row = _row(connection, run_id)
            found = [] if row is None else _defects(connection, row)
            return [defect.of_run(run_id) for defect in found]

    def repair(self, run_id: UUID) -> None:
        """Recompute cells, totals and counts from rows. Recorded data stays unchanged. Raises Busy."""

        def work(connection: Connection) -> None:
            postgresql.lift_timeouts(connection)
            if _row(connection, run_id, held=True) is not None:
                rows = recorded.read_rows(connection, run_id.bytes, mending=True)
                list(derived.defects(connection, run_id.bytes, mending=True))
                strays.sweep(connection, run_id.bytes)
                recorded.mend_totals(connection, run_id.bytes, rows)
                run_state.increment_version(connection, run_id)

        engine.write(self._opened.engine, work)

    def sweep(self) -> None:
        """Delete data of deleted runs, and pages that belong to no run, in short transactions. Raises Busy."""
        with _reading(self._opened.engine) as connection:
            removals = strays.removals(connection)
        for _ in removing.all_of(self._opened.engine, removals):
            pass


def unsound(database: Engine, run_id: UUID) -> Defect | None:
    """Return the first defect in the cells of a run, or None if they are sound or the run is deleted. Raises Busy."""
    with _reading(database) as connection:
        if _row(connection, run_id) is None:
            return None
        first = next(derived.defects(connection, run_id.bytes), None)
        return None if first is None else first.of_run(run_id)


@contextmanager
def _reading(database: Engine) -> Iterator[Connection]:
    with engine.reading(database) as connection:
        postgresql.lift_timeouts(connection)
        yield connection


def _row(connection: Connection, run_id: UUID, *, held: bool = False) -> Row[Any] | None:
    statement = select(runs).where(runs.c.run_id == run_id.bytes, runs.c.deleted == 0)
    return connection.execute(statement.with_for_update() if held else statement).one_or_none()


def _defects(connection: Connection, run: Row[Any]) -> Iterator[Defect]:
    rows = recorded.read_rows(connection, run.run_id)
    yield from rows.defects
    yield from recorded.of_ledger(connection, run.run_id, rows)
    yield from derived.defects(connection, run.run_id)
    yield from recorded.of_totals(connection, run, rows)
    yield from recorded.of_samples(connection, run.run_id)
    yield from strays.of_no_stream(connection, run.run_id)
