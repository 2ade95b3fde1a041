"""Verifies a database run by run, and optionally repairs derived data, for `ampmon db verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Engine, Row, delete, func, select, text

from ampmon_server.model.words import plural
from ampmon_server.settings import Settings
from ampmon_server.store.admin import derived, prune, recorded
from ampmon_server.store.admin.derived import DELETE, REPAIR, RESTORE, Defect
from ampmon_server.store.admin.prune import DATA, Removal
from ampmon_server.store.engine import engine, opening, postgresql
from ampmon_server.store.engine.errors import NotFound, Unreadable
from ampmon_server.store.engine.opening import Opened
from ampmon_server.store.schema.tables import runs, streams
from ampmon_server.store.streams import state as run_state


_Stray: TypeAlias = tuple[Defect, Removal]
_NOT_DELETED = runs.c.deleted.is_distinct_from(1)
"""Also true of a damaged value, whose run must be reported, and whose data must stay."""


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
        with closing(opening.open_to_read(settings, alone=repair)) as opened:
            yield cls(opened)

    @property
    def database(self) -> str:
        """Names the database without any secret."""
        return self._opened.name

    def runs(self, only: UUID | None = None) -> list[UUID]:
        """Return all runs, oldest first, or the run ``only``. Raises NotFound and Busy."""
        known = select(runs.c.run_id).where(_NOT_DELETED).order_by(runs.c.started)
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
                return list(_integrity(connection))
        except Unreadable as damage:
            cause = damage.__cause__
            return [Defect(self.database, str(getattr(cause, "orig", cause)), RESTORE)]

    def strays(self) -> list[Defect]:
        """Return rows that belong to no run, as defects. Raises Busy."""
        with _reading(self._opened.engine) as connection:
            return [defect for defect, _ in _of_no_run(connection)]

    def run(self, run_id: UUID) -> list[Defect]:
        """Return the defects of a run; none if it was deleted meanwhile. Raises Busy."""
        found: list[Defect] = []
        try:
            with _reading(self._opened.engine) as connection:
                row = _row(connection, run_id)
                if row is not None:
                    found.extend(_defects(connection, row))
        except (Unreadable, NotFound) as error:
            found.append(Defect("", str(error).removesuffix(engine.WHERE), RESTORE))
        return [defect.of_run(run_id) for defect in found]

    def repair(self, run_id: UUID) -> None:
        """Recompute cells, totals and counts from rows, if these can be read. Raises Busy.

        Recorded data stays unchanged. So does a run with values of another type that must be restored: by a damaged
        key, cells may seem to belong to no stream, and their rows may be pruned.
        """

        def work(connection: Connection) -> None:
            postgresql.lift_timeouts(connection)
            if _row(connection, run_id, held=True) is None:
                return
            if any(defect.remedy == RESTORE for defect in _of_types(connection, run_id.bytes)):
                return
            rows = recorded.read_rows(connection, run_id.bytes, mending=True)
            # Cells follow the counts of streams, and the run's totals follow cells.
            recorded.mend_totals(connection, run_id.bytes, rows)
            list(derived.defects(connection, run_id.bytes, mending=True))
            strays = _of_no_stream(connection, run_id.bytes)
            if all(defect.remedy == DELETE for defect, _ in strays):
                for _, removal in strays:
                    connection.execute(delete(removal.table).where(removal.of))
            recorded.mend_totals(connection, run_id.bytes, rows)
            run_state.increment_version(connection, run_id)

        # The next check reports damage.
        with suppress(Unreadable, NotFound):
            engine.write(self._opened.engine, work)

    def sweep(self) -> None:
        """Delete data of deleted runs, and pages that belong to no run, in short transactions. Raises Busy."""
        with _reading(self._opened.engine) as connection:
            removals = [of for defect, of in _of_no_run(connection) if defect.remedy == DELETE]
        for _ in prune.all_of(self._opened.engine, removals):
            pass


@contextmanager
def _reading(database: Engine) -> Iterator[Connection]:
    with engine.reading(database) as connection:
        postgresql.lift_timeouts(connection)
        yield connection


def _row(connection: Connection, run_id: UUID, *, held: bool = False) -> Row[Any] | None:
    statement = select(runs).where(runs.c.run_id == run_id.bytes, _NOT_DELETED)
    return connection.execute(statement.with_for_update() if held else statement).one_or_none()


def _defects(connection: Connection, run: Row[Any]) -> Iterator[Defect]:
    mistyped = list(_of_types(connection, run.run_id))
    yield from mistyped
    if mistyped:  # the other checks cannot compute with them
        return
    rows = recorded.read_rows(connection, run.run_id)
    yield from rows.defects
    yield from recorded.of_ledger(connection, run.run_id, rows)
    yield from derived.defects(connection, run.run_id)
    yield from recorded.of_totals(connection, run, rows)
    yield from recorded.of_samples(connection, run.run_id, rows)
    yield from recorded.of_texts(connection, run)
    yield from (defect for defect, _ in _of_no_stream(connection, run.run_id))


_TYPES = {int: "integer", float: "real", str: "text", bytes: "blob"}
"""SQLite's name of each type."""
_RECOUNTED = {
    runs: {"updates", "skipped", "sampled", "records", "lost"},
    streams: {"updates", "sampled", "first_step", "last_step"},
}
"""The columns that a repair counts again."""


def _of_types(connection: Connection, run_id: bytes) -> Iterator[Defect]:
    """Yield columns that have values of another type. Only SQLite stores such values."""
    for table in (runs, *DATA) if connection.dialect.name == "sqlite" else ():
        known = {column.name: _TYPES[column.type.python_type] for column in table.c}
        counts = [
            func.count().filter(func.typeof(table.c[name]).not_in([kind, "null"]))
            for name, kind in known.items()
        ]
        (found,) = connection.execute(select(*counts).where(table.c.run_id == run_id))
        for name, number in zip(known, found, strict=True):
            if number:
                what = f"{plural(number, 'value')} of another type than {known[name]}"
                remedy = REPAIR if name in _RECOUNTED.get(table, ()) else RESTORE
                yield Defect(f"{table.name}.{name}", what, remedy)


# -- strays ------------------------------------------------------------------------------------------------------------


def _integrity(connection: Connection) -> Iterator[Defect]:
    """Yield defects that SQLite's own integrity check finds. PostgreSQL keeps checksums itself, so it yields none."""
    if connection.dialect.name == "sqlite":
        for (line,) in connection.execute(text("PRAGMA integrity_check(20)")):
            if line != "ok":
                yield Defect("the file", " ".join(line.split()), RESTORE)


def _of_no_run(connection: Connection) -> Iterator[_Stray]:
    """Yield rows whose run does not exist or is deleted. Pages of cells and rows of deleted runs may be removed."""
    everyone = select(runs.c.run_id, _NOT_DELETED)
    known: dict[bytes, bool] = dict(connection.execute(everyone).all())
    for table in DATA:
        of = table.c.run_id
        for run_id, rows in connection.execute(select(of, func.count()).group_by(of)):
            if known.get(run_id):
                continue
            what = f"{rows} rows belong to {'a deleted' if run_id in known else 'no'} run"
            named = str(UUID(bytes=run_id)) if len(run_id) == 16 else run_id.hex()
            remedy = DELETE if run_id in known or table in derived.SERIES else RESTORE
            yield Defect(f"run {named}, {table.name}", what, remedy), Removal(table, of == run_id)


def _of_no_stream(connection: Connection, run_id: bytes) -> list[_Stray]:
    """Rows of a run whose stream does not exist. Recorded data is never removed.

    If recorded data belongs to no stream, the stream itself is damaged, and no cells are removed either.
    """
    known = list(connection.scalars(select(streams.c.stream).where(streams.c.run_id == run_id)))
    found: list[_Stray] = []
    for table in DATA:
        if "stream" not in table.c or table is streams:
            continue
        of = (table.c.run_id == run_id) & table.c.stream.not_in(known)
        counts = select(table.c.stream, func.count()).where(of).group_by(table.c.stream)
        for stream, rows in connection.execute(counts):
            remedy = DELETE if table in derived.SERIES else RESTORE
            what = f"{rows} rows belong to no stream"
            stray = Defect(f"{table.name}, stream {stream}", what, remedy)
            found.append((stray, Removal(table, of & (table.c.stream == stream))))
    return found
