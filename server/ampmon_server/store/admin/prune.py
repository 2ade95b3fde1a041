"""Prunes old runs: raw rows and samples go, and what is rolled up of them, skips, events and the summary stay.

What goes ends at the edge of a page, so that every cell has either all of its rows or none, and is never made anew from
a part of them. A run's newest page keeps its rows: a run that is resumed goes on from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Table,
    func,
    select,
    update,
)

from ampmon_server.store.admin import removing
from ampmon_server.store.admin.removing import Removal
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.errors import Busy
from ampmon_server.store.pages.pages import PAGE_BITS, edge_of
from ampmon_server.store.pages.pyramid import BITS, THIN
from ampmon_server.store.schema.tables import (
    gradient_blocks,
    gradient_totals,
    module_blocks,
    runs,
    scalar_pages,
    streams,
    update_pages,
)
from ampmon_server.store.streams import state as run_state


DAY_US = 86_400 * 1_000_000
IN_A_ROW_MAX = 3
"""Where so many runs in a row cannot be pruned it is the database that cannot be used."""
_SAMPLES = (gradient_totals, gradient_blocks, module_blocks)


@dataclass(frozen=True, slots=True)
class Keep:
    """For how many days after its last record a run keeps its rows, and its samples; None is for ever."""

    rows_days: float | None = None
    samples_days: float | None = None

    def before(self, now: int) -> tuple[int, int]:
        """Runs that were heard of last before these times lose their rows, and their samples."""
        return tuple(  # type: ignore[return-value]
            -1 if days is None else now - int(days * DAY_US)
            for days in (self.rows_days, self.samples_days)
        )


@dataclass(frozen=True, slots=True)
class Due:
    """A run that is old, and what of it goes: its raw rows, its samples, or, where it is deleted, all that is left.

    ``heard`` is when it was last heard of, in us since the epoch.
    """

    run_id: UUID
    name: str
    rows: bool = False
    samples: bool = False
    deleted: bool = False
    heard: int = 0


@dataclass(frozen=True, slots=True)
class PruneSize:
    """What pruning a run removes: updates and logged values, sampled updates, and the bytes of their blocks.

    ``parts``: in so many rows of the database's tables.
    """

    rows: int = 0
    samples: int = 0
    block_bytes: int = 0
    parts: int = 0

    def __add__(self, other: PruneSize) -> PruneSize:
        return PruneSize(
            self.rows + other.rows,
            self.samples + other.samples,
            self.block_bytes + other.block_bytes,
            self.parts + other.parts,
        )


@dataclass(frozen=True, slots=True)
class _Cut:
    """Of a stream: its rows before ``rows`` go, and its samples before ``samples``."""

    stream: int
    rows: int
    samples: int


class Failures:
    """The ``runs`` that could not be pruned: one keeps no other waiting. ``notify`` is called with each, and why."""

    def __init__(self, notify: Callable[[Due, Exception], None]) -> None:
        self.runs: list[Due] = []
        self._notify = notify
        self._in_a_row = 0

    @contextmanager
    def of(self, one: Due) -> Iterator[None]:
        """What is done with a run, and left undone where it raises. Raises Busy where several in a row do."""
        try:
            yield
        except Exception as error:  # of any kind: a damaged page may show as anything
            self.runs.append(one)
            self._in_a_row += 1
            self._notify(one, error)
            if self._in_a_row == IN_A_ROW_MAX:
                raise Busy(str(error)) from error
        else:
            self._in_a_row = 0


def due(connection: Connection, keep: Keep) -> list[Due]:
    """The runs that are old, the oldest first, and those that are deleted of which something is held."""
    rows_before, samples_before = keep.before(engine.now_us())
    table = runs.c
    old = select(table.run_id, table.name, table.silent_after, table.update_us).where(
        table.deleted == 0, run_state.heard_before(max(rows_before, samples_before))
    )
    found = [Due(UUID(bytes=run_id), "", deleted=True) for run_id in removing.deleted(connection)]
    for run in connection.execute(old.order_by(table.silent_after)):
        heard = run_state.heard(run)
        rows, samples = heard < rows_before, heard < samples_before
        found.append(Due(UUID(bytes=run.run_id), run.name, rows, samples, heard=heard))
    return found


def left(connection: Connection, one: Due) -> bool:
    """Whether anything of a run is to be pruned that is not yet."""
    return one.deleted or any(_some(connection, removal) for removal in _removals(connection, one))


def _some(connection: Connection, removal: Removal) -> bool:
    some = select(removal.table.c.stream).where(removal.of).limit(1)
    return connection.scalar(some) is not None


def size(connection: Connection, one: Due) -> PruneSize:
    """How much pruning a run removes. Counts all of it."""
    removals = removing.of_run(one.run_id.bytes) if one.deleted else _removals(connection, one)
    return sum((_size(connection, each.table, each.of) for each in removals), start=PruneSize())


def _size(connection: Connection, table: Table, of: ColumnElement[bool]) -> PruneSize:
    def total(what: ColumnElement[int]) -> int:
        return int(connection.scalar(select(what).select_from(table).where(of)) or 0)

    rows = {update_pages: update_pages.c.updates, scalar_pages: scalar_pages.c.logged}.get(table)
    return PruneSize(
        rows=0 if rows is None else total(func.sum(rows)),
        samples=total(func.sum(table.c.samples)) if table is gradient_totals else 0,
        block_bytes=total(func.sum(func.length(table.c.data))) if table in _SAMPLES else 0,
        parts=total(func.count()),
    )


def prune(database: Engine, one: Due) -> Iterator[int]:
    """Prune a run, a short transaction at a time; how many rows each has removed. Raises Busy.

    One that was heard of since it was found to be due is left as it is. First the run says from where on its rows are
    held, so that nobody misses them; what an interrupt leaves is pruned the next time.
    """
    if one.deleted:
        yield from removing.all_of(database, removing.of_run(one.run_id.bytes))
        return

    def mark(connection: Connection) -> list[Removal]:
        state = run_state.lock(connection, one.run_id)
        if state is None or state.deleted or run_state.heard(state) > one.heard:
            return []
        return _marked(connection, one)

    yield from removing.all_of(database, engine.write(database, mark))


def _marked(connection: Connection, one: Due) -> list[Removal]:
    table = streams.c
    for cut in _cuts(connection, one):
        statement = update(streams).where(
            table.run_id == one.run_id.bytes, table.stream == cut.stream
        )
        connection.execute(statement.values(rows_from=cut.rows, samples_from=cut.samples))
    run_state.move_on(connection, one.run_id)
    return _removals(connection, one)


def _removals(connection: Connection, one: Due) -> list[Removal]:
    found = []
    for cut in _cuts(connection, one):
        number = cut.rows >> PAGE_BITS
        for table, old in (
            (scalar_pages, (scalar_pages.c.bucket < number) & _is_overtaken()),
            (update_pages, update_pages.c.bucket < number),
        ):
            found.append(Removal(table, _of(table, one, cut) & old))
        for table in _SAMPLES:
            found.append(Removal(table, _of(table, one, cut) & (table.c.last_step < cut.samples)))
    return found


def _is_overtaken() -> ColumnElement[bool]:
    """That a page of logged values is not its name's newest, of which there are no cells."""
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


def _of(table: Table, one: Due, cut: _Cut) -> ColumnElement[bool]:
    return (table.c.run_id == one.run_id.bytes) & (table.c.stream == cut.stream)


def _cuts(connection: Connection, one: Due) -> list[_Cut]:
    """Where the rows and samples of each stream are cut: as they were, where nothing of that kind is due."""
    table = streams.c
    held = connection.execute(select(streams).where(table.run_id == one.run_id.bytes)).all()
    found = []
    for name in sorted({row.scaler for row in held}):
        together = [row for row in held if row.scaler == name]
        samples = max(row.samples_from for row in together)
        if one.samples:
            samples = max(samples, _samples_from(connection, one, together))
        rows = max(row.rows_from for row in together)
        if one.rows:
            rows = max(rows, _rows_from(connection, one, together))
        found += [_Cut(row.stream, rows, samples) for row in together]
    return found


def _rows_from(connection: Connection, one: Due, together: list[Row[Any]]) -> int:
    """The first step of the newest page of any rank."""
    lasts: list[int] = [row.last_step for row in together if row.last_step is not None]
    if lasts:
        return edge_of(max(lasts))
    table = scalar_pages.c
    newest = select(func.max(table.bucket)).where(
        table.run_id == one.run_id.bytes, table.stream.in_([row.stream for row in together])
    )
    return (connection.scalar(newest) or 0) << PAGE_BITS


def _samples_from(connection: Connection, one: Due, together: list[Row[Any]]) -> int:
    """The edge of the last cell of any rank, of the lowest level whose pages are always kept.

    Of modules nothing is rolled up: where they are looked into less often, the edge is before their newest sample.
    """
    lasts = [
        connection.scalar(
            select(func.max(table.c.last_step)).where(
                table.c.run_id == one.run_id.bytes,
                table.c.stream.in_([row.stream for row in together]),
            )
        )
        for table in (gradient_totals, module_blocks)
    ]
    bits = BITS * THIN.stop
    return min((last for last in lasts if last is not None), default=0) >> bits << bits
