"""Keeps cells level upon level, each of 16 of the level below, and finds those that fill a window.

A cell of level l covers the steps from ``16**l * id`` to the next; a row as a cell of one is level 0 and is kept
elsewhere. A page, a row of the table, holds the cells of one level that lie under one cell of the next: to recompute a
cell going up, one page is read and written a level. Empty cells are not there. Knows no field but `first`, `last`, `n`
and those that the window is measured by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    or_,
    select,
)

from ampmon_server.model.aggregates.merging import Cells, joined, starts_of
from ampmon_server.model.series import Ints
from ampmon_server.store.engine.engine import fetch, insert_rows
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.packing import compress, decompress
from ampmon_server.store.pages.ranges import Range


BITS = 4
TOP = 5
LEVELS = range(1, TOP + 1)
THIN = range(1, 3)
"""Levels of which a page may stand for hardly more rows than it has cells, and so not be worth to be kept."""

VERSION = b"\x01"
"""Stands before what is packed. A migration packs again what an older version packed."""

Key: TypeAlias = tuple[Any, ...]
"""Values of the table's key columns before `level`: run_id, stream, and a name where the table has one."""

Rows: TypeAlias = Callable[[int, int], Cells]
"""Rows from a first to a last step, both included, as cells of one, in order of step; none where the last is before."""

Complete: TypeAlias = Callable[[Cells, int, Range], Cells]
"""Adds to the cells that are held of a level those in the pages at both ends of a range of cells, but for the range."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Cells of one kind in one table; ``merge`` makes one of those from each start to the next.

    Pages hold cells as ``dtype`` has them: another one needs a migration. A page of the levels `THIN` is kept only
    where its cells stand for at least ``rows_per_cell`` rows each on average.
    """

    table: Table
    dtype: np.dtype[Any]
    merge: Callable[[Cells, Ints], Cells]
    rows_per_cell: int = 0

    @property
    def lowest(self) -> int:
        """The lowest level whose pages are all kept."""
        return THIN.stop if self.rows_per_cell else 1

    def roll(self, cells: Cells, level: int) -> Cells:
        """Cells of ``level``, of cells or rows of any level below in order of step."""
        return self.merge(cells, starts_of(cells["first"] >> BITS * level))

    def keeps(self, cells: Cells, level: int) -> bool:
        """Whether the page of ``cells`` is kept."""
        return level not in THIN or int(cells["n"].sum()) >= self.rows_per_cell * len(cells)

    def pack(self, cells: Cells) -> bytes:
        return VERSION + compress(cells.tobytes())

    def unpack(self, pages: Iterable[bytes]) -> Cells:
        """The cells of pages one after another, read-only. Raises Damaged."""
        try:
            data = b"".join([decompress(_unversioned(page)) for page in pages])
            return np.frombuffer(data, self.dtype)
        except ValueError as error:
            raise Damaged(f"a page of {self.table.name} is damaged: {error}") from error


def key_is(table: Table) -> ColumnElement[bool]:
    """That a row is of the key that `bound` binds."""
    return and_(*(table.c[name] == bindparam(f"of_{name}") for name in _key_names(table)))


def bound(table: Table, key: Key) -> dict[str, Any]:
    """The parameters of `key_is`."""
    return {f"of_{name}": value for name, value in zip(_key_names(table), key, strict=True)}


def _key_names(table: Table) -> list[str]:
    names = [column.name for column in table.primary_key]
    return [name for name in names if name not in {"level", "bucket"}]


def _unversioned(page: bytes) -> bytes:
    if page[:1] != VERSION:
        raise ValueError(f"version {page[:1].hex()}, this is {VERSION.hex()}")
    return page[1:]


def cells_of(first: int, last: int) -> Range:
    """The cells of level 1 that cover the steps from ``first`` to ``last``."""
    return first >> BITS, last >> BITS


def steps_of(within: Range, level: int = 1) -> Range:
    """The first and the last step that cells of ``level`` cover."""
    return within[0] << BITS * level, ((within[1] + 1) << BITS * level) - 1


# -- writing -----------------------------------------------------------------------------------------------------------


def put(
    connection: Connection,
    pyramid: Pyramid,
    key: Key,
    rows: Rows,
    steps: Range,
    complete: Complete | None = None,
) -> None:
    """Make the cells of some steps, from the first to the last, anew from ``rows``, and those above them.

    ``complete`` is given the cells of the pages of a level that are kept, and adds those of pages that are not, beside
    the cells that are put there. Two statements, and one for each level in which a page is left empty.
    """
    low, high = within = cells_of(*steps)
    cells = pyramid.roll(rows(*steps_of(within)), 1)
    held = _touched(connection, pyramid, key, within)
    made: list[tuple[Any, ...]] = []
    for level in LEVELS:
        before = held[level]
        if complete is not None and level in THIN:
            before = complete(before, level, (low, high))
        left, right = np.searchsorted(before["first"] >> BITS * level, [low, high + 1])
        after = joined([before[:left], cells, before[right:]])
        low, high = low >> BITS, high >> BITS
        pages = paged(pyramid, after, level)
        made += [(*key, level, bucket, pyramid.pack(page)) for bucket, page in pages.items()]
        drop(connection, pyramid, key, level, _buckets(held[level], level) - set(pages))
        if level < TOP:
            cells = pyramid.roll(after, level + 1)
    insert_rows(connection, pyramid.table, made, replace=True)


def _touched(connection: Connection, pyramid: Pyramid, key: Key, within: Range) -> dict[int, Cells]:
    """By level, the cells of all pages in which a cell of ``within`` or one above it lies."""
    wanted = bound(pyramid.table, key)
    for level in LEVELS:
        wanted[f"low_{level}"] = within[0] >> BITS * level
        wanted[f"high_{level}"] = within[1] >> BITS * level
    found: dict[int, list[bytes]] = {level: [] for level in LEVELS}
    for level, data in fetch(connection, _touching(pyramid.table), wanted):
        found[level].append(data)
    return {level: pyramid.unpack(pages) for level, pages in found.items()}


@lru_cache
def _touching(table: Table) -> Select[Any]:
    of = table.c
    each = [
        and_(
            of.level == level,
            of.bucket.between(bindparam(f"low_{level}"), bindparam(f"high_{level}")),
        )
        for level in LEVELS
    ]
    statement = select(of.level, of.data).where(key_is(table), or_(*each))
    return statement.order_by(of.level, of.bucket)


def _buckets(cells: Cells, level: int) -> set[int]:
    return set((cells["first"] >> BITS * (level + 1)).tolist())


def paged(pyramid: Pyramid, cells: Cells, level: int) -> dict[int, Cells]:
    """Cells of ``level`` in the pages that are kept, by bucket."""
    buckets = cells["first"] >> BITS * (level + 1)
    starts = starts_of(buckets)
    parts = np.split(cells, starts[1:]) if len(cells) else []
    return {
        int(buckets[start]): part
        for start, part in zip(starts, parts, strict=True)
        if pyramid.keeps(part, level)
    }


def drop(connection: Connection, pyramid: Pyramid, key: Key, level: int, buckets: set[int]) -> None:
    """Delete pages of a level."""
    if buckets:
        table = pyramid.table
        gone = delete(table).where(
            key_is(table), table.c.level == level, table.c.bucket == bindparam("gone")
        )
        of = bound(table, key)
        connection.execute(gone, [{**of, "gone": bucket} for bucket in buckets])


# -- reading -----------------------------------------------------------------------------------------------------------


def read(connection: Connection, pyramid: Pyramid, key: Key, level: int, within: Range) -> Cells:
    """The cells of ``level`` whose number is in ``within``, both ends included."""
    wanted = bound(pyramid.table, key)
    wanted |= {"level": level, "low": within[0] >> BITS, "high": within[1] >> BITS}
    pages = fetch(connection, _reading(pyramid.table), wanted)
    cells = pyramid.unpack(data for (data,) in pages)
    left, right = np.searchsorted(cells["first"] >> BITS * level, [within[0], within[1] + 1])
    return cells[left:right]


@lru_cache
def _reading(table: Table) -> Select[Any]:
    of = table.c
    within = of.bucket.between(bindparam("low"), bindparam("high"))
    statement = select(of.data).where(key_is(table), of.level == bindparam("level"), within)
    return statement.order_by(of.bucket)
