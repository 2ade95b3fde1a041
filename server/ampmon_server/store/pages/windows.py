"""Finds the cells that fill a window: the coarsest level with enough cells, and rows where the window cuts a cell.

So all counts over the result are exact, and the amount read does not depend on the length of the series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection

from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages import pyramid as levels
from ampmon_server.store.pages import ranges
from ampmon_server.store.pages.pages import PAGE_BITS, STEPS_AT_ONCE
from ampmon_server.store.pages.pyramid import BITS, TOP, Key, Pyramid, Rows
from ampmon_server.store.pages.ranges import Range


WIDE = 4
"""How many columns wide a cell may be."""

READS_MAX = 8
"""Cells in more separate ranges of steps than this are read as one range."""

_ENDS = {"step": ("first", "last"), "time": ("time_min", "time_max")}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The requested range: ``start`` <= x < ``stop``, where x is the step, or the time in us since the epoch."""

    start: int = 0
    stop: int = INTEGER_MAX + 1
    by: Literal["step", "time"] = "step"

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
        return (self.start, self.stop - 1) if self.by == "step" else (0, INTEGER_MAX)


@dataclass(frozen=True, slots=True)
class WindowedSeries:
    """One series and its cells. Only cells are held before step ``rows_from``, and only rows from step ``edge`` on.

    ``following`` returns the first step at or after a given step that may have a row.
    """

    connection: Connection
    pyramid: Pyramid
    key: Key
    rows: Rows
    rows_from: int = 0
    edge: int = INTEGER_MAX + 1
    following: Callable[[int], int | None] = lambda step: step

    @property
    def whole_from(self) -> int:
        """The first step from which cells of the levels that are always stored have all of their rows."""
        bits = BITS * self.pyramid.lowest
        return -(-self.rows_from >> bits) << bits

    def roll_up(self, first: int, last: int) -> None:
        """Rebuild the cells of the steps from ``first`` to ``last``, and the cells above them."""
        levels.put(*self._of, self.rows, (first, last))

    def rebuild(self, at_once: int = STEPS_AT_ONCE) -> None:
        """Rebuild all cells whose rows are all held, with the rows of at most ``at_once`` steps in memory."""
        start = self.following(self.whole_from)
        while start is not None and start < self.edge:
            stop = min((start >> PAGE_BITS << PAGE_BITS) + at_once, self.edge)
            self.roll_up(start, stop - 1)
            start = self.following(stop)

    def window(self, stretch: Stretch, columns: int) -> Cells:
        """The cells of a stretch, in order of step: ``columns / 4`` to ``columns * 4`` of them, or all of its rows.

        They lie within it, except cells that begin in it and whose rows are pruned. A cell has the steps of its
        extremes, so a line loses nothing where a cell is four columns wide. Columns that are eight times as wide, and
        multiples of a power of two, each hold whole cells.
        """
        level = TOP
        cells = self._cut(self._read(TOP, *stretch.steps), stretch)
        while level and WIDE * len(cells) < columns:
            below = level - 1 if int(cells["n"].sum()) >= (1 << BITS) // WIDE * columns else 0
            cells = self._cut(self._under(cells, level, below), stretch)
            level = below
        return self._trimmed(cells, level, stretch)

    @property
    def _of(self) -> tuple[Connection, Pyramid, Key]:
        return self.connection, self.pyramid, self.key

    @staticmethod
    def _cut(cells: Cells, stretch: Stretch) -> Cells:
        meets = stretch.meets(cells)
        # A copy costs more than the rest of a window.
        return cells if meets.all() else cells[meets]

    def _trimmed(self, cells: Cells, level: int, stretch: Stretch) -> Cells:
        """Split the cells that the stretch cuts, down to rows."""
        parts: list[Any] = []
        while True:
            # A cell that is still larger than a row at level 0 has no rows.
            whole = stretch.holds(cells) if level else stretch.begins(cells)
            if not parts and whole.all():
                return cells
            parts.append(cells[whole])
            if not level or whole.all():
                break
            cells = self._cut(self._under(cells[~whole], level, level - 1), stretch)
            level -= 1
        found = joined(parts)
        return found[np.argsort(found["first"], kind="stable")]

    def _under(self, cells: Cells, level: int, below: int) -> Cells:
        """The cells of the level ``below`` that lie under ``cells`` of ``level``."""
        if not len(cells):
            return cells
        stretches = _stretches(cells["first"].tolist(), cells["last"].tolist())
        found = joined([self._read(below, first, last) for first, last in stretches])
        under = np.isin(found["first"] >> BITS * level, cells["first"] >> BITS * level)
        return found if under.all() else found[under]

    def _read(self, level: int, first: int, last: int) -> Cells:
        if level:
            return self._rolled(level, *_numbers((first, last), level))
        parts = []
        if first < self.rows_from:
            old = _numbers((first, min(last, self.rows_from - 1)), 1)
            parts.append(levels.read(*self._of, 1, old))
        if last >= self.rows_from:
            parts.append(self.rows(max(first, self.rows_from), last))
        return joined(parts)

    def _rolled(self, level: int, low: int, high: int) -> Cells:
        """The cells of ``level`` numbered ``low`` to ``high``. Those of the newest page are built from its rows."""
        cells = self._held(level, low, high)
        start, stop = max(low << BITS * level, self.edge), (high + 1) << BITS * level
        if start >= stop:
            return cells
        return self.pyramid.roll(joined([cells, self.rows(start, stop - 1)]), level)

    def _held(self, level: int, low: int, high: int) -> Cells:
        return levels.read(*self._of, level, (low, high))


def _numbers(steps: Range, level: int) -> Range:
    """The numbers of the cells of a level that cover the steps."""
    return steps[0] >> BITS * level, steps[1] >> BITS * level


def _stretches(firsts: Sequence[int], lasts: Sequence[int]) -> list[Range]:
    """The steps of cells as at most `READS_MAX` ranges."""
    found = ranges.merge(zip(firsts, lasts, strict=True))
    return found if len(found) <= READS_MAX else [(found[0][0], found[-1][1])]
