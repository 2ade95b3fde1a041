"""Checks cells of any kind against the rows and cells that they aggregate, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from sqlalchemy import bindparam, select

from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.store.admin.checks.finding import REPAIR, RESTORE, Defect
from ampmon_server.store.engine.engine import fetch, insert_rows
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages import pyramid as levels
from ampmon_server.store.pages.pyramid import BITS, TOP
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import WindowedSeries


_CHUNK = 4
"""The rows under one cell of this level are in memory at once."""
_ROUNDING = 1e-9
"""Relative tolerance of floating-point sums, which depend on the order of addition."""

Pages = dict[int, Cells | None]
"""The cells of each page, by the number of the cell above them. None for a page that cannot be read."""


class _Fault(NamedTuple):
    """A defect of one page: its kind, level and steps, the rows that its cells count, and the rows found below."""

    kind: str
    level: int
    first: int
    last: int
    held: int = 0
    found: int = 0


@dataclass(slots=True)
class PageComparison:
    """Compares the pages of a series, called ``name``, with the data below them. Call `run`, then `findings`.

    With ``mending``, replace a wrong page, unless that would lose data whose rows are pruned.
    """

    name: str
    series: WindowedSeries
    mending: bool = False
    _lost: bool = False
    _faults: list[_Fault] = field(default_factory=list)

    def run(self) -> None:
        """Compare all pages. Memory holds the data under one cell of level 4 at a time."""
        tops = [self._chunk(number) for number in self._chunks()]
        cells = joined([np.zeros(0, self.series.pyramid.dtype), *tops])
        if self._lost:
            return
        for level in range(_CHUNK, TOP + 1):
            self._compare(level, cells, self._pages(level))
            cells = self.series.pyramid.roll(cells, level + 1)

    def findings(self, where: str) -> Iterator[Defect]:
        """Yield one defect for each level and kind of fault."""
        for (kind, level), alike in groupby(sorted(self._faults), attrgetter("kind", "level")):
            _, _, firsts, lasts, held, found = zip(*alike, strict=True)
            place = f"{where}, {self.name}, steps {firsts[0]} to {max(lasts)}"
            pages = f"{len(lasts)} page{'s' * (len(lasts) != 1)} of level {level}"
            if kind != "wrong":
                remedy = RESTORE if kind == "lost" else REPAIR
                yield Defect(place, f"{pages} cannot be read", remedy)
            elif sum(held) == sum(found):
                yield Defect(place, f"{pages} with values that differ from the data below", REPAIR)
            else:
                counts = "counts" if len(lasts) == 1 else "count"
                what = f"{pages} {counts} {sum(held)} rows where there are {sum(found)}"
                yield Defect(place, what, REPAIR)

    def _chunks(self) -> list[int]:
        """The numbers of the level-4 cells that have pages or rows below them, in order."""
        found = set(self._pages(_CHUNK - 1, contents=False))
        step = self.series.following(0)
        while step is not None and step < self.series.edge:
            found.add(step >> BITS * _CHUNK)
            step = self.series.following(((step >> BITS * _CHUNK) + 1) << BITS * _CHUNK)
        return sorted(found)

    def _chunk(self, number: int) -> Cells:
        """Compare the pages under a cell of level 4, and return that cell recomputed.

        Return no cells if a page whose rows are pruned cannot be read.
        """
        series, pyramid = self.series, self.series.pyramid
        low, high = levels.steps_of((number, number), _CHUNK)
        held = {
            level: self._pages(level, (low >> BITS * (level + 1), high >> BITS * (level + 1)))
            for level in range(1, _CHUNK)
        }
        first, last = max(low, series.whole_from), min(high, series.edge - 1)
        rows = series.rows(first, last) if first <= last else np.zeros(0, pyramid.dtype)
        lowest = pyramid.lowest
        for level in range(1, lowest):
            span = BITS * (level + 1)
            pages = {at: page for at, page in held[level].items() if at << span >= first}
            self._compare(level, pyramid.roll(rows, level), pages)
        cells = joined([self._pruned(held[lowest]), pyramid.roll(rows, lowest)])
        if self._loses(held[lowest]):
            return cells[:0]
        for level in range(lowest, _CHUNK):
            self._compare(level, cells, held[level])
            cells = pyramid.roll(cells, level + 1)
        return cells

    def _pruned(self, pages: Pages) -> Cells:
        """The cells whose rows are pruned, which nothing can check."""
        empty = np.zeros(0, self.series.pyramid.dtype)
        cells = joined([empty, *(page for page in pages.values() if page is not None)])
        return cells[cells["first"] < self.series.whole_from]

    def _loses(self, pages: Pages) -> bool:
        """Record unreadable pages whose rows are pruned. If there are any, cells above them cannot be checked."""
        lowest, whole_from = self.series.pyramid.lowest, self.series.whole_from
        unread = [levels.steps_of((at, at), lowest + 1) for at in pages if pages[at] is None]
        lost = [_Fault("lost", lowest, *steps) for steps in unread if steps[0] < whole_from]
        self._faults += lost
        self._lost = self._lost or bool(lost)
        return bool(lost)

    def _compare(self, level: int, cells: Cells, held: Pages) -> None:
        pyramid = self.series.pyramid
        made = levels.paged(pyramid, cells, level)
        empty = cells[:0]
        for at in sorted(made.keys() | held.keys()):
            steps = levels.steps_of((at, at), level + 1)
            expected, found = made.get(at, empty), held.get(at, empty)
            if found is None:
                self._faults.append(_Fault("damaged", level, *steps))
            elif not same(expected, found):
                counts = int(found["n"].sum()), int(expected["n"].sum())
                self._faults.append(_Fault("wrong", level, *steps, *counts))
            else:
                continue
            if self.mending:
                self._mend(level, at, made.get(at))

    def _mend(self, level: int, at: int, page: Cells | None) -> None:
        series = self.series
        if page is None:
            levels.drop(series.connection, series.pyramid, series.key, level, {at})
        else:
            row = (*series.key, level, at, series.pyramid.pack(page))
            insert_rows(series.connection, series.pyramid.table, [row], replace=True)

    def _pages(self, level: int, buckets: Range | None = None, *, contents: bool = True) -> Pages:
        table = self.series.pyramid.table
        statement = select(table.c.bucket, *([table.c.data] if contents else [])).where(
            levels.key_is(table), table.c.level == bindparam("level")
        )
        wanted = {**levels.bound(table, self.series.key), "level": level}
        if buckets is not None:
            statement = statement.where(table.c.bucket.between(*buckets))
        rows = fetch(self.series.connection, statement.order_by(table.c.bucket), wanted)
        return {bucket: self._cells(*data) for bucket, *data in rows}

    def _cells(self, *data: bytes) -> Cells | None:
        try:
            return self.series.pyramid.unpack(data)
        except Damaged:
            return None


def same(one: Cells, other: Cells) -> bool:
    """Whether cells are equal, apart from the rounding of sums."""
    if one.tobytes() == other.tobytes():
        return True
    return len(one) == len(other) and all(
        np.allclose(one[name], other[name], rtol=_ROUNDING, atol=0, equal_nan=True)
        if one[name].dtype.kind == "f"
        else np.array_equal(one[name], other[name])
        for name in one.dtype.names or ()
    )
