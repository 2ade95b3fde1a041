"""Reads and rolls up a series. A window gets the coarsest level with enough cells, and rows where it cuts a cell.

So all counts over the result are exact, and the amount read does not depend on the length of the series.

Where a series has rows at few steps, pages with hardly fewer cells than rows are not stored: with a sample every
hundred updates, each sample would have its own cell on each of the lowest levels. The cells of such a page are built
from rows when they are read. These rows are few: with many, the page is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection

from ampmon_server.model.aggregates.merging import Cells, joined, picked
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import Key, insert_rows
from ampmon_server.store.pages import ranges
from ampmon_server.store.pages.pyramid import BITS, LEVELS, TOP, Pyramid, steps_of
from ampmon_server.store.pages.ranges import Range


WIDE = 4
"""How many columns wide a cell may be."""

FEW = 256
"""Cells of at most this many steps are built from their rows, which a window mostly reads next: it ends among them."""

READS_MAX = 8
"""Cells in more separate ranges of steps than this are read as one range."""

Rows: TypeAlias = Callable[[int, int], Cells]
"""Returns the rows from a first to a last step, both included, as one cell per row, in order; none if last < first."""

_ENDS = {"step": ("first", "last"), "time": ("time_min", "time_max")}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The requested range: ``start`` <= x < ``stop``, where x is the step, or the time in us since the epoch.

    A range of time has no row outside the steps ``within``.
    """

    start: int = 0
    stop: int = INTEGER_MAX + 1
    by: Literal["step", "time"] = "step"
    within: Range = (0, INTEGER_MAX)

    def meets(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which cells [n] may have a row in the range."""
        low, high = _ENDS[self.by]
        found: npt.NDArray[np.bool_] = (cells[low] < self.stop) & (cells[high] >= self.start)
        return found

    def holds(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which cells [n] have all of their rows in the range."""
        low, high = _ENDS[self.by]
        found: npt.NDArray[np.bool_] = (cells[low] >= self.start) & (cells[high] < self.stop)
        return found

    def begins(self, cells: Cells) -> npt.NDArray[np.bool_]:
        """Which cells [n] begin in the range. A cut cell that cannot be split counts as a whole where it begins."""
        low = cells[_ENDS[self.by][0]]
        found: npt.NDArray[np.bool_] = (low >= self.start) & (low < self.stop)
        return found

    @property
    def steps(self) -> Range:
        """The first and the last step that the range can contain."""
        return (self.start, self.stop - 1) if self.by == "step" else self.within


WHOLE = Stretch()


@dataclass(frozen=True, slots=True)
class WindowedSeries:
    """One series and its cells. Only cells are held before step ``rows_from``, and only rows from step ``edge`` on.

    Where rows are pruned, cells of the levels that are always stored represent those that are not. ``following``
    returns the first step at or after a given step that may have a row. ``few`` is `FEW`, or less where rows are large.
    """

    connection: Connection
    pyramid: Pyramid
    key: Key
    rows: Rows
    rows_from: int = 0
    edge: int = INTEGER_MAX + 1
    following: Callable[[int], int | None] = lambda step: step
    few: int = FEW
    _known: dict[Range, Cells] = field(default_factory=dict)
    """The rows that a window has read, by range of steps. It often needs some of them again."""

    @property
    def whole_from(self) -> int:
        """The first step from which cells of the levels that are always stored have all of their rows."""
        bits = BITS * self.pyramid.lowest
        return -(-self.rows_from >> bits) << bits

    def roll_up(self, first: int, last: int) -> None:
        """Rebuild the cells of these steps that lie before the edge and whose rows are all held, and those above them.

        Runs two statements, plus one for each level that loses a page.
        """
        first, last = max(first, self.whole_from), min(last, self.edge - 1)
        if first > last:
            return
        low, high = within = _numbers((first, last), 1)
        cells = self.pyramid.roll(self._rows(*steps_of(within)), 1)
        held = self.pyramid.touched(self.connection, self.key, within)
        made: list[tuple[Any, ...]] = []
        for level in LEVELS:
            before = held[level]
            if level in self.pyramid.thin:
                before = self._with(before, level, steps_of((low >> BITS, high >> BITS), level + 1))
            left, right = np.searchsorted(before["first"] >> BITS * level, [low, high + 1])
            after = joined([before[:left], cells, before[right:]])
            low, high = low >> BITS, high >> BITS
            pages = self.pyramid.paged(after, level)
            made += [
                (*self.key, level, bucket, self.pyramid.pack(page))
                for bucket, page in pages.items()
            ]
            # A resume may leave so few rows in a page that it is not worth storing any more.
            gone = set((held[level]["first"] >> BITS * (level + 1)).tolist()) - set(pages)
            self.pyramid.drop(self.connection, self.key, level, gone)
            if level < TOP:
                cells = self.pyramid.roll(after, level + 1)
        insert_rows(self.connection, self.pyramid.table, made, replace=True)

    def refresh(self, first: int, last: int, before: int) -> None:
        """Rebuild the cells that are out of date now that rows from step ``first`` to ``last`` are stored.

        They are those of these steps, and those of pages that have stopped growing: the edge was ``before``.
        """
        self.roll_up(min(first, before), self.edge - 1 if self.edge > before else last)

    def window(self, stretch: Stretch, columns: int) -> Cells:
        """The cells of a stretch, in order of step: ``columns / 4`` to ``columns * 4`` of them, or all of its rows.

        They lie within it, except cells that begin in it and whose rows are pruned. A cell has the steps of its
        extremes, so a line loses nothing where a cell is four columns wide. Columns that are eight times as wide, and
        multiples of a power of two, each hold whole cells.
        """
        level = self._first_level(stretch, columns)
        cells = self._cut(self._read(level, *stretch.steps), stretch)
        while level and WIDE * len(cells) < columns:
            # Fewer rows than `WIDE` for each column are few enough to be the result themselves.
            below = level - 1 if int(cells["n"].sum()) >= (1 << BITS) // WIDE * columns else 0
            cells = self._cut(self._under(cells, level, below), stretch)
            level = below
        return self._trimmed(cells, level, stretch)

    def _first_level(self, stretch: Stretch, columns: int) -> int:
        """The coarsest level that may have enough cells. Its cells are all stored, or can be built from rows.

        For time, the level above: `window` may skip to rows there, and must so however narrow its steps are known.
        """
        steps = stretch.steps
        level, lowest = TOP, self.pyramid.lowest if steps[0] < self.rows_from else 1
        while level > lowest:
            low, high = _numbers(steps, level)
            if WIDE * (high - low + 1) >= columns:
                break
            level -= 1
        return level if stretch.by == "step" else min(level + 1, TOP)

    @staticmethod
    def _cut(cells: Cells, stretch: Stretch) -> Cells:
        meets = stretch.meets(cells)
        return cells if meets.all() else picked(cells, meets)

    def _trimmed(self, cells: Cells, level: int, stretch: Stretch) -> Cells:
        """Split the cells that the stretch cuts, down to rows."""
        parts: list[Any] = []
        while True:
            # A cell that is still larger than a row at level 0 has no rows.
            whole = stretch.holds(cells) if level else stretch.begins(cells)
            if not parts and whole.all():
                return cells
            parts.append(picked(cells, whole))
            if not level or whole.all():
                break
            cells = self._cut(self._under(picked(cells, ~whole), level, level - 1), stretch)
            level -= 1
        return _in_order(parts)

    def _under(self, cells: Cells, level: int, below: int) -> Cells:
        """The cells of the level ``below`` that lie under ``cells`` of ``level``."""
        if not len(cells):
            return cells
        stretches = _stretches(cells["first"].tolist(), cells["last"].tolist())
        found = joined([self._read(below, first, last) for first, last in stretches])
        under = np.isin(found["first"] >> BITS * level, cells["first"] >> BITS * level)
        found = found if under.all() else picked(found, under)
        if not self.pyramid.thin or cells["first"][0] >= self.rows_from:
            return found
        of = np.searchsorted(cells["first"] >> BITS * level, found["first"] >> BITS * level)
        # A level-1 page may be stored where the level-2 page is not, so the cells found may not be all of them.
        whole = np.bincount(of, found["n"], len(cells)) == cells["n"]
        if whole.all():
            return found
        rest = picked(cells, ~whole)
        if below < level - 1:  # a level between may be stored for steps whose lower ones are not
            rest = self._under(self._under(rest, level, level - 1), level - 1, below)
        return _in_order([picked(found, whole[of]), rest])

    def _read(self, level: int, first: int, last: int) -> Cells:
        if level:
            return self._rolled(level, *_numbers((first, last), level))
        parts = []
        if first < self.rows_from:
            old = _numbers((first, min(last, self.rows_from - 1)), 1)
            parts.append(self.pyramid.read(self.connection, self.key, 1, old))
        if last >= self.rows_from:
            parts.append(self._rows(max(first, self.rows_from), last))
        return joined(parts)

    def _rows(self, first: int, last: int) -> Cells:
        for (low, high), rows in self._known.items():
            if low <= first and last <= high:
                left, right = np.searchsorted(rows["first"], [first, last + 1])
                return rows[left:right]
        self._known[first, last] = rows = self.rows(first, last)
        return rows

    def _rolled(self, level: int, low: int, high: int) -> Cells:
        """The cells of ``level`` numbered ``low`` to ``high``. Few, or those of the newest page, are built of rows."""
        start, stop = low << BITS * level, (high + 1) << BITS * level
        if self.rows_from <= start and stop - start <= self.few:
            return self.pyramid.roll(self._rows(start, stop - 1), level)
        cells = self.pyramid.read(self.connection, self.key, level, (low, high))
        if level in self.pyramid.thin:
            cells = self._with(cells, level, (max(start, self.rows_from), stop - 1))
        if stop <= self.edge:
            return cells
        newest = self._rows(max(start, self.edge), stop - 1)
        last = np.searchsorted(cells["first"], self.edge >> BITS * level << BITS * level)
        grown = self.pyramid.roll(joined([cells[last:], newest]), level)
        return joined([cells[:last], grown])

    def _with(self, kept: Cells, level: int, within: Range) -> Cells:
        """Add to ``kept`` the cells of ``level`` at steps ``within`` whose pages are not stored."""
        first, last = within[0], min(within[1], self.edge - 1)
        held = sorted(set((kept["first"] >> BITS * (level + 1)).tolist()))
        parts = [kept]
        for gap in ranges.gaps(held, *_numbers((first, last), level + 1)):
            start, stop = steps_of(gap, level + 1)
            if (start := max(start, first)) <= (stop := min(stop, last)):
                parts.append(self.pyramid.roll(self._rows(start, stop), level))
        return _in_order(parts)


def _in_order(parts: Sequence[Cells]) -> Cells:
    cells = joined([part for part in parts if len(part)] or parts[:1])
    rises = cells["first"][1:] > cells["first"][:-1]
    return cells if rises.all() else picked(cells, np.argsort(cells["first"]))


def _numbers(steps: Range, level: int) -> Range:
    """The numbers of the cells of a level that cover the steps."""
    return steps[0] >> BITS * level, steps[1] >> BITS * level


def _stretches(firsts: Sequence[int], lasts: Sequence[int]) -> list[Range]:
    """The steps of cells as at most `READS_MAX` ranges."""
    found = ranges.merge(zip(firsts, lasts, strict=True))
    return found if len(found) <= READS_MAX else [(found[0][0], found[-1][1])]
