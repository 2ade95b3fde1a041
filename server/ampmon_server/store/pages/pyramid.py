"""Stores and reads cells in levels: each cell covers up to 16 cells of the level below.

A cell of level l with number i covers the steps from ``16**l * i`` up to the first step of the next cell. A single row
counts as a cell of level 0 and is stored elsewhere. A page is a row of the table. It holds the cells of one level that
lie under one cell of the next level, so recomputing a cell and those above it reads and writes one page for each level.
Empty cells are not stored. This module uses only the fields `first` and `n` of a cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from sqlalchemy import (
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    or_,
    select,
)

from ampmon_server.model.aggregates.merging import Cells, Layout, starts_of
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import Key, bound, fetch, key_is
from ampmon_server.store.pages.packing import compress, decompress
from ampmon_server.store.pages.ranges import Range


BITS = 4
TOP = 5
LEVELS = range(1, TOP + 1)
THIN = range(1, 3)
"""Levels whose pages may stand for hardly more rows than they have cells, and then are not worth storing."""


@dataclass(frozen=True, slots=True)
class Pyramid:
    """Cells of one kind in one table.

    Unless pages name their fields, changing the ``layout`` needs a migration. A page of a level in `THIN` is stored
    only if its cells stand for at least ``rows_per_cell`` rows each on average.
    """

    table: Table
    layout: Layout
    rows_per_cell: int = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.layout.dtype

    @property
    def thin(self) -> range:
        """The levels whose pages are stored only if they are worth it."""
        return THIN if self.rows_per_cell else range(1, 1)

    @property
    def lowest(self) -> int:
        """The lowest level whose pages are all stored."""
        return self.thin.stop

    def roll(self, cells: Cells, level: int) -> Cells:
        """Merge cells or rows of any lower level, given in order of step, into cells of ``level``."""
        return self.layout.merge(cells, starts_of(cells["first"] >> BITS * level))

    def pack(self, cells: Cells) -> bytes:
        return compress(cells.tobytes())

    def unpack(self, pages: Iterable[bytes]) -> Cells:
        """Concatenate the cells of pages into a read-only array. Raises Damaged."""
        try:
            return np.frombuffer(b"".join(map(decompress, pages)), self.dtype)
        except ValueError as error:
            raise Damaged(f"a page of {self.table.name} is damaged: {error}") from error

    def read(self, connection: Connection, key: Key, level: int, within: Range) -> Cells:
        """The cells of ``level`` whose number is in ``within``, both ends included."""
        pages = self.pages(connection, key, level, (within[0] >> BITS, within[1] >> BITS))
        cells = self.unpack(data for _, data in pages)
        left, right = np.searchsorted(cells["first"] >> BITS * level, [within[0], within[1] + 1])
        return cells[left:right]

    def pages(
        self, connection: Connection, key: Key, level: int, buckets: Range = (0, INTEGER_MAX)
    ) -> list[tuple[Any, ...]]:
        """The buckets and packed cells of the pages of ``level`` in these ``buckets``, both included, in order."""
        wanted = {"level": level, "low": buckets[0], "high": buckets[1]}
        return fetch(connection, _reading(self.table), bound(key) | wanted)

    def touched(self, connection: Connection, key: Key, within: Range) -> dict[int, Cells]:
        """By level, the cells of all pages that contain a cell of ``within`` or one above it."""
        wanted = bound(key)
        for level in LEVELS:
            wanted[f"low_{level}"] = within[0] >> BITS * level
            wanted[f"high_{level}"] = within[1] >> BITS * level
        found: dict[int, list[bytes]] = {level: [] for level in LEVELS}
        for level, data in fetch(connection, _touching(self.table), wanted):
            found[level].append(data)
        return {level: self.unpack(pages) for level, pages in found.items()}

    def paged(self, cells: Cells, level: int) -> dict[int, Cells]:
        """Cells of ``level`` by page (bucket), without the pages that are not worth storing."""
        buckets = cells["first"] >> BITS * (level + 1)
        rows = self.rows_per_cell if level in self.thin else 0
        return {
            int(buckets[first]): cells[first:end]
            for first, end in pairwise((*starts_of(buckets).tolist(), len(cells)))
            if int(cells["n"][first:end].sum()) >= rows * (end - first)
        }

    def drop(self, connection: Connection, key: Key, level: int, buckets: set[int]) -> None:
        """Delete pages of a level."""
        if buckets:
            table = self.table
            gone = delete(table).where(
                key_is(table), table.c.level == level, table.c.bucket == bindparam("gone")
            )
            connection.execute(gone, [{**bound(key), "gone": bucket} for bucket in buckets])


def steps_of(within: Range, level: int = 1) -> Range:
    """The first and the last step that cells of ``level`` cover."""
    return within[0] << BITS * level, ((within[1] + 1) << BITS * level) - 1


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


@lru_cache
def _reading(table: Table) -> Select[Any]:
    of = table.c
    within = of.bucket.between(bindparam("low"), bindparam("high"))
    statement = select(of.bucket, of.data).where(
        key_is(table), of.level == bindparam("level"), within
    )
    return statement.order_by(of.bucket)
