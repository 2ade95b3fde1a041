"""Cells of series with rows at few steps. Pages with hardly fewer cells than rows are not stored.

With a sample every hundred updates, each sample would have its own cell on each of the lowest levels. The cells of a
page that is not stored are built from rows when they are read. These rows are few: with many, the page is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.store.pages import pyramid as levels
from ampmon_server.store.pages import ranges, windows
from ampmon_server.store.pages.pyramid import BITS, THIN
from ampmon_server.store.pages.ranges import Range


@dataclass(frozen=True, slots=True)
class SparseSeries(windows.WindowedSeries):
    """One series, some of whose pages are not stored. Where rows are pruned too, cells above represent them."""

    def roll_up(self, first: int, last: int) -> None:
        """Rebuild the cells of these steps that lie before the edge and whose rows are all held."""
        first, last = max(first, self.whole_from), min(last, self.edge - 1)
        if first <= last:
            levels.put(*self._of, self.rows, (first, last), self._complete)

    def _complete(self, kept: Cells, level: int, within: Range) -> Cells:
        """Add to ``kept`` the cells of ``level`` in the pages at both ends of ``within``, except those inside it."""
        low, high = within
        bits = BITS * level
        start, stop = low >> BITS << BITS, (high >> BITS) + 1 << BITS
        beside = [(start << bits, (low << bits) - 1), ((high + 1) << bits, (stop << bits) - 1)]
        return self._with(kept, level, beside)

    def _held(self, level: int, low: int, high: int) -> Cells:
        kept = levels.read(*self._of, level, (low, high))
        if level not in THIN:
            return kept
        start = max(low << BITS * level, self.rows_from)
        stop = min((high + 1) << BITS * level, self.edge) - 1
        found = self._with(kept, level, [(start, stop)])
        left, right = np.searchsorted(found["first"] >> BITS * level, [low, high + 1])
        return found[left:right]

    def _under(self, cells: Cells, level: int, below: int) -> Cells:
        found = windows.WindowedSeries._under(self, cells, level, below)
        if not len(cells) or cells["first"][0] >= self.rows_from:
            return found
        of = np.searchsorted(cells["first"] >> BITS * level, found["first"] >> BITS * level)
        # A level-1 page may be stored where the level-2 page is not, so the cells found may not be all of them.
        whole = np.bincount(of, found["n"], len(cells)) == cells["n"]
        if whole.all():
            return found
        rest = cells[~whole]
        if below < level - 1:  # a level between may be stored for steps whose lower ones are not
            rest = self._under(self._under(rest, level, level - 1), level - 1, below)
        both = joined([found[whole[of]], rest])
        return both[np.argsort(both["first"], kind="stable")]

    def _with(self, kept: Cells, level: int, stretches: Sequence[Range]) -> Cells:
        """Add to ``kept`` the cells of ``level`` in the ``stretches`` of steps whose pages are not stored."""
        bits = BITS * (level + 1)
        held = set((kept["first"] >> bits).tolist())
        parts = [kept]
        for first, last in stretches:
            for low, high in ranges.gaps(sorted(held), first >> bits, last >> bits):
                start, stop = (
                    max(first, low << bits),
                    min(last, ((high + 1) << bits) - 1, self.edge - 1),
                )
                if start <= stop:
                    parts.append(self.pyramid.roll(self.rows(start, stop), level))
        if len(parts) == 1:
            return kept
        found = joined(parts)
        return found[np.argsort(found["first"], kind="stable")]
