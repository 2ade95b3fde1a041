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
from ampmon_server.store.admin import removing
from ampmon_server.store.admin.checks import blocks, pages, records, strays
from ampmon_server.store.admin.checks.cells import PageComparison
from ampmon_server.store.admin.checks.finding import RESTORE, Defect
from ampmon_server.store.admin.checks.kinds import KINDS
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.errors import Busy, Damaged, NotFound
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
        with self._reading() as connection:
            found = [UUID(bytes=each) for each in connection.scalars(known)]
        if only is not None and not found:
            raise NotFound(f"There is no run {only}.")
        return found

    def broken(self) -> list[Defect]:
        """Return defects of the file itself. If there are any, nothing else can be checked. Raises Busy."""
        try:
            with self._reading() as connection:
                return list(strays.integrity(connection))
        except Busy as busy:
            cause = busy.__cause__
            if type(cause) is not DatabaseError:  # a damaged file raises no subclass of it
                raise
            return [Defect(self.database, str(cause.orig), RESTORE)]

    def strays(self) -> list[Defect]:
        """Return rows that belong to no run, as defects. Raises Busy."""
        with self._reading() as connection:
            return list(strays.of_no_run(connection))

    def run(self, run_id: UUID) -> list[Defect]:
        """Return the defects of a run; none if it was deleted meanwhile. Raises Busy."""
        with self._reading() as connection:
            return list(_check(connection, run_id))

    def repair(self, run_id: UUID) -> None:
        """Recompute cells, totals and counts from rows. Recorded data stays unchanged. Raises Busy."""

        def work(connection: Connection) -> None:
            postgresql.lift_timeouts(connection)
            row = _row(connection, run_id, held=True)
            if row is None:
                return
            rows = pages.read(connection, run_id.bytes, "", mending=True)
            list(rolled_up(connection, run_id.bytes, "", mending=True))
            strays.sweep(connection, run_id.bytes)
            row = _row(connection, run_id)
            if row is not None:
                records.mend(connection, row, rows)
                run_state.increment_version(connection, run_id)

        engine.write(self._opened.engine, work)

    def sweep(self) -> None:
        """Delete data of deleted runs in short transactions, and pages that belong to no run. Raises Busy."""
        with self._reading() as connection:
            deleted = removing.deleted(connection)
        for run_id in deleted:
            for _ in removing.all_of(self._opened.engine, removing.of_run(run_id)):
                pass
        engine.write(self._opened.engine, strays.sweep_runs)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with engine.reading(self._opened.engine) as connection:
            postgresql.lift_timeouts(connection)
            yield connection


def _check(connection: Connection, run_id: UUID) -> Iterator[Defect]:
    row = _row(connection, run_id)
    if row is None:
        return
    where = f"run {run_id}"
    rows = pages.read(connection, run_id.bytes, where)
    yield from rows.findings
    yield from records.contiguity(connection, run_id.bytes, rows, where)
    yield from rolled_up(connection, run_id.bytes, where)
    yield from records.totals(connection, row, rows, where)
    yield from blocks.check(connection, run_id.bytes, where)
    yield from strays.of_no_stream(connection, run_id.bytes, where)


def unsound(database: Engine, run_id: UUID) -> Defect | None:
    """Return the first defect in the cells of a run, or None if they are sound or the run is deleted. Raises Busy."""
    with engine.reading(database) as connection:
        postgresql.lift_timeouts(connection)
        if _row(connection, run_id) is None:
            return None
        return next(rolled_up(connection, run_id.bytes, f"run {run_id}"), None)


def rolled_up(
    connection: Connection, run_id: bytes, where: str, *, mending: bool = False
) -> Iterator[Defect]:
    """Yield the defects in the cells of a run. With ``mending``, also repair those that rows can restore."""
    for kind in KINDS:
        try:
            for name, series in kind.series(connection, run_id):
                yield from _compare(PageComparison(name, series, mending), where)
        except Damaged as error:
            yield Defect(f"{where}, {kind.table.name}", str(error), RESTORE)


def _compare(comparison: PageComparison, where: str) -> Iterator[Defect]:
    try:
        comparison.run()
    except Damaged as error:
        yield Defect(
            f"{where}, {comparison.name}", f"a block of it cannot be read: {error}", RESTORE
        )
    yield from comparison.findings(where)


def _row(connection: Connection, run_id: UUID, *, held: bool = False) -> Row[Any] | None:
    statement = select(runs).where(runs.c.run_id == run_id.bytes, runs.c.deleted == 0)
    return connection.execute(statement.with_for_update() if held else statement).one_or_none()
