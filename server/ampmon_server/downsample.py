"""Rows cut into pixel columns, each keeping its first, last, least and greatest row and its exact counts.

Pure numpy: knows rows in order of x, and neither what they measure nor how they are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt


Ints: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Columns:
    """``rows`` rows, in order of x, cut into c runs, none of them empty: ``starts`` [c] are their first rows."""

    starts: Ints
    rows: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> Ints:
        """The last row of each column, [c]."""
        return np.append(self.starts[1:], self.rows)[: len(self)].astype(np.int64) - 1

    @property
    def sizes(self) -> Ints:
        """How many rows each column holds, [c]."""
        return self.ends - self.starts + 1

    def add(self, values: Numbers) -> Numbers:
        """Sums over each column of ``values`` [rows, ...]: exact counts, where values are flags or counts."""
        whole = values.astype(np.int64) if values.dtype == bool else values
        return self._reduce(np.add, whole)

    def greatest(self, values: Numbers) -> Numbers:
        """The greatest of each column of ``values`` [rows, ...]; NaN only where there is nothing else."""
        return self._reduce(np.fmax, values)

    def least(self, values: Numbers) -> Numbers:
        """The least of each column of ``values`` [rows, ...]; NaN only where there is nothing else."""
        return self._reduce(np.fmin, values)

    def outline(self, values: Numbers) -> Ints:
        """Rows, in order, that draw ``values`` [rows] as all would: first, last, least and greatest of each column.

        At most four rows a column.
        """
        picked = [self.starts, self.ends]
        for extreme in (self.least(values), self.greatest(values)):
            hits = np.flatnonzero(values == np.repeat(extreme, self.sizes))
            column = np.searchsorted(self.starts, hits, side="right") - 1
            picked.append(hits[np.unique(column, return_index=True)[1]])
        return np.unique(np.concatenate(picked))

    def _reduce(self, combine: np.ufunc, values: Numbers) -> Numbers:
        if not len(self):
            return values[:0]
        reduced: Numbers = combine.reduceat(values, self.starts, axis=0)
        return reduced


def pixel_columns(x: Ints, low: int, high: int, width: int) -> Columns:
    """Columns of rows whose sorted ``x`` [rows] falls into the same of ``width`` equal parts of ``low`` to ``high``."""
    part = np.minimum((x - low) * width // max(high - low + 1, 1), width - 1)
    return _runs(part)


def aligned_columns(x: Ints, span: int) -> Columns:
    """Columns of rows whose sorted ``x`` [rows] falls into the same multiple of ``span``: stable as rows are added."""
    return _runs(x // span)


def aligned_span(low: int, high: int, columns: int) -> int:
    """The least power of two whose multiples cut ``low`` to ``high`` into at most ``columns`` parts (2 or more)."""
    span = 1
    while high // span - low // span >= columns:
        span *= 2
    return span


def _runs(part: Ints) -> Columns:
    if not len(part):
        return Columns(np.zeros(0, np.int64), 0)
    starts = np.flatnonzero(np.diff(part, prepend=part[0] - 1))
    return Columns(starts.astype(np.int64), len(part))
