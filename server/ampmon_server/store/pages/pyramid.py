"""Stores and reads cells in levels: each cell covers up to 16 cells of the level below.

A cell of level l with number i covers the steps from ``16**l * i`` up to the first step of the next cell. A single row
counts as a cell of level 0 and is stored elsewhere. A page is a row of the table. It holds the cells of one level that
lie under one cell of the next level, so recomputing a cell and those above it reads and writes one page for each level.
Empty cells are not stored. This module uses only the fields `first` and `n` of a cell.
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
"""Levels whose pages may stand for hardly more rows than they have cells, and then are not worth storing."""

VERSION = b"\x01"
"""The first byte of every packed page but those of parameters. A migration must repack the pages of older versions."""

Key: TypeAlias = tuple[Any, ...]
"""Values of the table's key columns before `level`: run_id, stream, and a name where the table has one."""

Rows: TypeAlias = Callable[[int, int], Cells]
"""Returns the rows from a first to a last step, both included, as one cell per row, in order; none if last < first."""

Complete: TypeAlias = Callable[[Cells, int, Range], Cells]
"""Adds to the stored cells of a level those in the pages at both ends of a range of cells, except the range itself."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Cells of one kind in one table. ``merge`` combines the cells from each start to the next into one.

    Pages store cells with ``dtype``. If they do not name their fields, changing it needs a migration. A page of a level
    in `THIN` is stored only if its cells stand for at least ``rows_per_cell`` rows each on average.
    """

    table: Table
    dtype: np.dtype[Any]
    merge: Callable[[Cells, Ints], Cells]
    rows_per_cell: int = 0

    @property
    def lowest(self) -> int:
        """The lowest level whose pages are all stored."""
        return THIN.stop if self.rows_per_cell else 1

    def roll(self, cells: Cells, level: int) -> Cells:
        """Merge cells or rows of any lower level, given in order of step, into cells of ``level``."""
        return self.merge(cells, starts_of(cells["first"] >> BITS * level))

    def keeps(self, cells: Cells, level: int) -> bool:
        """Whether a page with these ``cells`` is worth storing."""
        return level not in THIN or int(cells["n"].sum()) >= self.rows_per_cell * len(cells)

    def pack(self, cells: Cells) -> bytes:
        return VERSION + compress(cells.tobytes())

    def unpack(self, pages: Iterable[bytes]) -> Cells:
        """Concatenate the cells of pages into a read-only array. Raises Damaged."""
        try:
            data = b"".join([decompress(_unversioned(page)) for page in pages])
            return np.frombuffer(data, self.dtype)
        except ValueError as error:
            raise Damaged(f"a page of {self.table.name} is damaged: {error}") from error


def key_is(table: Table) -> ColumnElement[bool]:
    """The condition that a row has the key bound by `bound`."""
    return and_(*(table.c[name] == bindparam(f"of_{name}") for name in _key_names(table)))


def bound(table: Table, key: Key) -> dict[str, Any]:
    """The bind parameters of `key_is`."""
    return {f"of_{name}": value for name, value in zip(_key_names(table), key, strict=True)}


def _key_names(table: Table) -> list[str]:
    names = [column.name for column in table.primary_key]
    return [name for name in names if name not in {"level", "bucket"}]


def _unversioned(page: bytes) -> bytes:
    if page[:1] != VERSION:
        raise ValueError(f"version {page[:1].hex()}, but this ampmon reads {VERSION.hex()}")
    return page[1:]


def cells_of(first: int, last: int) -> Range:
    """The numbers of the level-1 cells that cover the steps from ``first`` to ``last``."""
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
    """Rebuild the cells of a range of steps from ``rows``, and the cells above them.

    ``complete`` gets the stored cells of a level, and adds those of pages that are not stored, beside the rebuilt
    cells. Runs two statements, plus one for each level that loses a page.
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
    """By level, the cells of all pages that contain a cell of ``within`` or one above it."""
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
    """Cells of ``level`` by page (bucket), without the pages that are not worth storing."""
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
