"""Prunes old runs: deletes raw rows and samples, and keeps their aggregates, the skips, events and summary.

Pruning deletes up to the edge of a page. So every cell has either all of its rows or none, and is never recomputed from
a part of them. The newest page of a run keeps its rows, because a resumed run continues from them. Samples of ranks
that end before it are rolled up first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Table,
    and_,
    delete,
    func,
    select,
    tuple_,
    update,
)

from ampmon_server.store.admin import derived
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.engine import Calls, reads
from ampmon_server.store.engine.errors import Busy
from ampmon_server.store.pages.pages import PAGE_BITS, edge_of
from ampmon_server.store.pages.pyramid import BITS, THIN
from ampmon_server.store.samples import parameter_rollups
from ampmon_server.store.schema.tables import (
    BLOCK,
    gradient_blocks,
    metadata,
    module_blocks,
    runs,
    scalar_pages,
    streams,
    update_pages,
)
from ampmon_server.store.streams import state as run_state
from ampmon_server.store.streams.scalers import scalers_of


DAY_US = 86_400 * 1_000_000
IN_A_ROW_MAX = 3
"""After this many consecutive failures, the database itself counts as unusable."""
ROWS_MAX = 2000
BLOCKS_MAX = 64
"""Rows or blocks deleted in one transaction. A block takes many pages of the file, and deleting it reads its row."""

DATA = [table for table in metadata.sorted_tables if "run_id" in table.c and table is not runs]
"""The tables with data of runs. Streams come last, so `deleted` still finds a run after an interruption."""
DATA.sort(key=lambda table: table is streams)

_SAMPLES = (gradient_blocks, module_blocks)
_LARGE = {*_SAMPLES, scalar_pages, update_pages}


# -- removing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Removal:
    """The rows of one table and one run that match ``of``."""

    table: Table
    of: ColumnElement[bool]

    @property
    def at_once(self) -> int:
        large = self.table in _LARGE or "level" in self.table.c
        return BLOCKS_MAX if large else ROWS_MAX

    def some(self, connection: Connection) -> int:
        """Delete the first `at_once` of the remaining rows and return how many were deleted."""
        _, *key = self.table.primary_key
        which = self.of
        # A DELETE has no LIMIT in PostgreSQL, so find the first row that stays.
        following = select(*key).where(which).order_by(*key).offset(self.at_once).limit(1)
        first_kept = connection.execute(following).first()
        if first_kept is not None:
            which = and_(which, tuple_(*key) < tuple_(*first_kept))
        return connection.execute(delete(self.table).where(which)).rowcount


def all_of(database: Engine, removals: list[Removal]) -> Iterator[int]:
    """Delete all rows, a transaction at a time, and yield how many rows each deletes. Raises Busy."""
    for removal in removals:
        removed = removal.at_once
        while removed >= removal.at_once:
            removed = engine.write(database, removal.some)
            yield removed


# -- pruning -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """How many days after its last record a run keeps its rows and its samples. None is for ever."""

    rows_days: float | None = None
    samples_days: float | None = None

    def before(self, now: int) -> tuple[int, int]:
        """Return two times, in us since the epoch, or -1 for data that is kept for ever.

        A run last heard of before the first time loses its rows; before the second, its samples.
        """
        return tuple(  # type: ignore[return-value]
            -1 if days is None else now - int(min(days * DAY_US, now + 1))
            for days in (self.rows_days, self.samples_days)
        )


@dataclass(frozen=True, slots=True)
class PruneTask:
    """A run to prune, and what to remove: its raw rows, its samples, or, if the run is deleted, everything left.

    ``heard`` is when something new of the run was last stored, in us since the epoch.
    """

    run_id: UUID
    name: str
    rows: bool = False
    samples: bool = False
    deleted: bool = False
    heard: int = 0


class PruneSize(NamedTuple):
    """How much pruning a run removes.

    ``rows`` counts updates and logged values, ``samples`` sampled updates, ``block_bytes`` the bytes of sample blocks,
    and ``parts`` the rows of database tables.
    """

    rows: int = 0
    samples: int = 0
    block_bytes: int = 0
    parts: int = 0

    @classmethod
    def total(cls, sizes: Iterable[PruneSize]) -> PruneSize:
        return cls(*map(sum, zip(*sizes, strict=True)))


_Cuts: TypeAlias = dict[int, tuple[int, int]]
"""By stream, the first step of the rows, and of the samples, that are kept."""


class Failures:
    """Collects the ``runs`` that could not be pruned, so that pruning continues with the other runs.

    Calls ``notify`` with each failed run and its error.
    """

    def __init__(self, notify: Callable[[PruneTask, Exception], None]) -> None:
        self.runs: list[PruneTask] = []
        self._notify = notify
        self._in_a_row = 0

    @contextmanager
    def of(self, one: PruneTask) -> Iterator[None]:
        """Record an error in the block as a failure of this run. Raises Busy at `IN_A_ROW_MAX` consecutive failures."""
        try:
            yield
        except Exception as error:  # a damaged page may raise any kind of error
            self.runs.append(one)
            self._in_a_row += 1
            self._notify(one, error)
            if self._in_a_row == IN_A_ROW_MAX:
                raise Busy(str(error)) from error
        else:
            self._in_a_row = 0


def due(connection: Connection, keep: Keep) -> list[PruneTask]:
    """Return deleted runs with data left, then the old runs, oldest first."""
    rows_before, samples_before = keep.before(engine.now_us())
    table = runs.c
    unfinished = select(streams.c.run_id).where(streams.c.run_id == table.run_id).exists()
    deleted = connection.scalars(select(table.run_id).where(table.deleted == 1, unfinished))
    columns = table.run_id, table.name, table.silent_after, table.update_us
    every = select(*columns).where(table.deleted == 0).order_by(table.silent_after)
    found = [PruneTask(UUID(bytes=run_id), "", deleted=True) for run_id in deleted]
    for run in connection.execute(every):
        heard = run_state.heard(run)
        rows, samples = heard < rows_before, heard < samples_before
        if rows or samples:
            found.append(PruneTask(UUID(bytes=run.run_id), run.name, rows, samples, heard=heard))
    return found


def left(connection: Connection, one: PruneTask) -> bool:
    """Whether a run has anything left to prune."""
    return one.deleted or any(
        connection.scalar(select(each.table.c.stream).where(each.of).limit(1)) is not None
        for each in _removals(connection, one)
    )


def size(connection: Connection, one: PruneTask) -> PruneSize:
    """Count what pruning a run removes. Counts every row."""
    removals = _removals(connection, one)
    return PruneSize.total(_size(connection, each.table, each.of) for each in removals)


def _removals(connection: Connection, one: PruneTask) -> list[Removal]:
    if one.deleted:  # all but the run's own row
        return [Removal(table, table.c.run_id == one.run_id.bytes) for table in DATA]
    return _before(_cuts(connection, one), one)


def _size(connection: Connection, table: Table, of: ColumnElement[bool]) -> PruneSize:
    def total(what: ColumnElement[int]) -> int:
        return int(connection.scalar(select(what).select_from(table).where(of)) or 0)

    packed = [func.length(table.c[name]) for name in ("totals", *BLOCK) if name in table.c]
    rows = {update_pages: update_pages.c.updates, scalar_pages: scalar_pages.c.logged}.get(table)
    return PruneSize(
        rows=0 if rows is None else total(func.sum(rows)),
        samples=total(func.sum(table.c.samples)) if table is gradient_blocks else 0,
        block_bytes=sum(total(func.sum(each)) for each in packed) if table in _SAMPLES else 0,
        parts=total(func.count()),
    )


def prune(database: Engine, one: PruneTask) -> Iterator[int]:
    """Prune a run in short transactions and yield how many rows each removes. Raises Busy.

    A run that stored something new since it was found due is left as it is. The first transaction records from which
    step on rows and samples are kept, so that readers do not expect the others. The next pruning removes what an
    interrupted one leaves.
    """

    def mark(connection: Connection) -> list[Removal]:
        if one.deleted:
            return _removals(connection, one)
        state = run_state.lock(connection, one.run_id)
        if state is None or state.deleted or run_state.heard(state) > one.heard:
            return []
        return _marked(connection, one)

    yield from all_of(database, engine.write(database, mark))


def _marked(connection: Connection, one: PruneTask) -> list[Removal]:
    table, cuts = streams.c, _cuts(connection, one)
    for scaler in scalers_of(connection, one.run_id.bytes):
        parameter_rollups.seal(connection, scaler, cuts[scaler.number][1])
    for stream, (rows, samples) in cuts.items():
        of = update(streams).where(table.run_id == one.run_id.bytes, table.stream == stream)
        connection.execute(of.values(rows_from=rows, samples_from=samples))
    run_state.increment_version(connection, one.run_id)
    return _before(cuts, one)


def _before(cuts: _Cuts, one: PruneTask) -> list[Removal]:
    found = []
    for stream, (rows, samples) in cuts.items():
        number = rows >> PAGE_BITS
        for table, old in (
            (scalar_pages, (scalar_pages.c.bucket < number) & _is_overtaken()),
            (update_pages, update_pages.c.bucket < number),
            *((table, table.c.last_step < samples) for table in _SAMPLES),
        ):
            of = (table.c.run_id == one.run_id.bytes) & (table.c.stream == stream)
            found.append(Removal(table, of & old))
    return found


def _is_overtaken() -> ColumnElement[bool]:
    """That a page of logged values is not the newest of its name. The newest page has no cells."""
    table, later = scalar_pages.c, scalar_pages.alias().c
    return (
        select(later.bucket)
        .where(
            later.run_id == table.run_id,
            later.stream == table.stream,
            later.name == table.name,
            later.bucket > table.bucket,
        )
        .exists()
    )


def _cuts(connection: Connection, one: PruneTask) -> _Cuts:
    """Where to cut the rows and samples of each stream. A kind that is not due keeps its previous cut."""
    table = streams.c
    held = connection.execute(select(streams).where(table.run_id == one.run_id.bytes)).all()
    found: _Cuts = {}
    for name in sorted({row.scaler for row in held}):
        together = [row for row in held if row.scaler == name]
        samples = max(row.samples_from for row in together)
        if one.samples:
            samples = max(samples, _samples_from(connection, one, together))
        rows = max(row.rows_from for row in together)
        if one.rows:
            rows = max(rows, _rows_from(connection, one, together))
        # Cells cover all ranks of a scaler, so all of its streams are cut at the same steps.
        found |= {row.stream: (rows, samples) for row in together}
    return found


def _rows_from(connection: Connection, one: PruneTask, together: list[Row[Any]]) -> int:
    lasts: list[int] = [row.last_step for row in together if row.last_step is not None]
    if lasts:
        return edge_of(max(lasts))
    table = scalar_pages.c
    newest = select(func.max(table.bucket)).where(
        table.run_id == one.run_id.bytes, table.stream.in_([row.stream for row in together])
    )
    return (connection.scalar(newest) or 0) << PAGE_BITS


def _samples_from(connection: Connection, one: PruneTask, together: list[Row[Any]]) -> int:
    """The first step of the last cell of any rank, on the lowest level whose pages are always kept.

    Modules have no aggregates. Where they are sampled less often, the cut is before their newest sample.
    """
    lasts = [
        connection.scalar(
            select(func.max(table.c.last_step)).where(
                table.c.run_id == one.run_id.bytes,
                table.c.stream.in_([row.stream for row in together]),
            )
        )
        for table in _SAMPLES
    ]
    bits = BITS * THIN.stop
    return min((last for last in lasts if last is not None), default=0) >> bits << bits


class PruneCalls(Calls):
    """Calls that prune old runs, for the server's hourly pruning and for `ampmon db prune`."""

    due = reads(due)
    left = reads(left)
    unsound = reads(derived.unsound)

    def prune(self, one: PruneTask) -> Iterator[int]:
        """Prune a run, one short transaction per step, and yield how many rows each removes."""
        return prune(self._engine, one)

    def clear(self, run_id: UUID) -> Iterator[int]:
        """Remove the data of a deleted run, one short transaction per step, and yield how many rows each removes."""
        return prune(self._engine, PruneTask(run_id, "", deleted=True))
