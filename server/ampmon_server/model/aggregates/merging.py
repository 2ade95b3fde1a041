"""Merges several cells into one, field by field, whatever the fields mean and wherever the cells are stored.

A cell is a row of a structured array whose fields are all int64 or float64, or short vectors of them. Every cell has
`first` and `last`, the first and last step in it, and `n`, the number of rows it aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon.numerics.sampling_error import Ints


Cells: TypeAlias = npt.NDArray[Any]
"""A structured array [n] in order of `first`, without overlaps."""

Kind: TypeAlias = str | tuple[str, int]
"""The type of a field: `INT` or `FLOAT`, or one of them and the length of a vector."""

INT, FLOAT = "<i8", "<f8"

NEVER = np.iinfo(np.int64).max
"""First step of something that never happened. Its last step is -1."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Fields taken from the cell whose field ``by`` is the ``most`` (least or greatest), the earliest of equal ones.

    If ``by`` is a vector, the ``carries`` are vectors of the same length, and each place is chosen separately.
    Otherwise they may have any length. NaN is neither least nor greatest.
    """

    most: Literal["least", "greatest"]
    by: str
    kind: Kind
    carries: Mapping[str, Kind]


@dataclass(frozen=True, slots=True)
class _Group:
    """Columns ``start`` to ``stop`` of a cell's 8-byte words, which merge alike or by which a choice is made."""

    how: str
    start: int
    stop: int
    kind: str


_REDUCE: Mapping[str, np.ufunc] = {"add": np.add, "least": np.fmin, "greatest": np.fmax}
_WIDE = 128
"""From this many columns on, one cell at a time is faster: `reduceat` goes through the rows once for each column."""


class Layout:
    """The fields of a cell by how they merge: from the first cell, from the last, added, the least, the greatest.

    ``dtype`` is their type in memory and on disk. `least` and `greatest` prefer any number to NaN.
    """

    def __init__(
        self,
        *,
        first: Mapping[str, Kind],
        last: Mapping[str, Kind],
        add: Mapping[str, Kind],
        least: Mapping[str, Kind] = {},
        greatest: Mapping[str, Kind] = {},
        choices: Sequence[Choice] = (),
    ) -> None:
        fields: list[tuple[Any, ...]] = []
        self._groups: list[_Group] = []
        at = places = 0
        hows = {"first": first, "last": last, "add": add, "least": least, "greatest": greatest}
        for how, named in hows.items():
            for real in (INT, FLOAT):
                alike = [
                    (name, *_pair(kind)) for name, kind in named.items() if _pair(kind)[0] == real
                ]
                stop = at + sum(size for _, _, size in alike)
                fields += [_field(*each) for each in alike]
                if alike and how != "first":  # merged cells begin as the first
                    self._groups.append(_Group(how, at, stop, real))
                at = stop
        self._deciders: list[_Group] = []
        decided = [np.zeros(0, np.int64)]
        for choice in choices:
            kind, size = _pair(choice.kind)
            names = {choice.by: choice.kind, **choice.carries}
            fields += [_field(name, *_pair(each)) for name, each in names.items()]
            words = sum(_pair(each)[1] for each in names.values())
            self._deciders.append(_Group(choice.most, at, at + size, kind))
            decided.append(places + np.arange(words) % size)
            at, places = at + words, places + size
        self.dtype: np.dtype[Any] = np.dtype(fields)
        # For each of the last words of a cell, which of the columns of all deciders decides where it comes from.
        self._decided: Ints = np.concatenate(decided)

    def empty(self) -> Cells:
        return np.zeros(0, self.dtype)

    def of_single(self, step: Ints, time: Ints, **values: npt.NDArray[Any]) -> Cells:
        """Return a cell for each step, with its time and ``values`` as the first and the last, and the rest 0."""
        cells = np.zeros(len(step), self.dtype)
        cells["n"], cells["first"], cells["last"] = 1, step, step
        for name, held in {"time": time, **values}.items():
            cells[f"{name}_first"] = cells[f"{name}_last"] = held
        cells["time_min"] = cells["time_max"] = time
        return cells

    def merge(self, cells: Cells, starts: Ints) -> Cells:
        """Return cells [g], each merged from ``cells`` between one of ``starts`` [g] and the next. Always a copy.

        A sum that float64 cannot hold becomes infinite or NaN.
        """
        if len(starts) == len(cells):
            return picked(cells, starts)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._merged(cells, starts)

    def _merged(self, cells: Cells, starts: Ints) -> Cells:
        merged = picked(cells, starts)
        ends = np.full(len(starts), len(cells) - 1)
        ends[:-1] = starts[1:] - 1
        words, into = _words(cells), _words(merged)
        for group in self._groups:
            columns = words[group.kind][:, group.start : group.stop]
            last = group.how == "last"
            found = columns[ends] if last else _reduced(_REDUCE[group.how], columns, starts)
            into[group.kind][:, group.start : group.stop] = found
        if self._deciders:
            of = np.repeat(np.arange(len(starts)), ends - starts + 1)
            rows, choices = self._chosen(words, starts, of), slice(-len(self._decided), None)
            # As integers, which copies floats bit by bit.
            into[INT][:, choices] = np.take_along_axis(words[INT][:, choices], rows, axis=0)
        return merged

    def _chosen(self, words: Mapping[str, npt.NDArray[Any]], starts: Ints, of: Ints) -> Ints:
        """The rows that the choices take, [g, words]. ``of`` is the merged cell of each row [n]."""
        worse = []
        for decider in self._deciders:
            values = words[decider.kind][:, decider.start : decider.stop]
            best = _REDUCE[decider.how].reduceat(values, starts, axis=0)
            worse.append(values != best[of])
        # If all values are NaN, any row will do: then the remainder is the first.
        rows = np.arange(len(of))[:, None] + len(of) * np.concatenate(worse, axis=1)
        first: Ints = np.minimum.reduceat(rows, starts, axis=0)[:, self._decided] % len(of)
        return first


def _reduced(reduce: np.ufunc, columns: npt.NDArray[Any], starts: Ints) -> npt.NDArray[Any]:
    """Reduce ``columns`` [n, words] to [g, words]: one row for the rows between one of ``starts`` [g] and the next."""
    if columns.shape[1] < _WIDE:
        return np.asarray(reduce.reduceat(columns, starts, axis=0))
    found = np.empty((len(starts), columns.shape[1]), columns.dtype)
    ends = [*starts[1:].tolist(), len(columns)]
    for row, start, end in zip(found, starts.tolist(), ends, strict=True):
        reduce.reduce(columns[start:end], axis=0, out=row)
    return found


def _pair(kind: Kind) -> tuple[str, int]:
    return (kind, 1) if isinstance(kind, str) else kind


def _field(name: str, kind: str, size: int) -> tuple[Any, ...]:
    return (name, kind) if size == 1 else (name, kind, (size,))


def _words(cells: Cells) -> dict[str, npt.NDArray[Any]]:
    """The 8-byte words of cells, [n, words], as integers and as floats. Both are views."""
    words = cells.view(INT).reshape(len(cells), -1)
    return {INT: words, FLOAT: words.view(FLOAT)}


def joined(parts: Sequence[Cells]) -> Cells:
    """Concatenate at least one part. Views as integers keep `np.concatenate` from comparing dtypes field by field."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.view(INT) for part in parts]).view(parts[0].dtype)


def picked(cells: Cells, which: npt.NDArray[Any]) -> Cells:
    """Copy the cells that a boolean mask or an index array picks. numpy would copy each field by itself."""
    found: Cells = cells.view(f"V{cells.itemsize}")[which].view(cells.dtype)
    return found


_FINEST_SPAN = 2.0**-20


def aligned_span(low: int, high: float, columns: int) -> float:
    """Return the least power of two whose multiples cut ``low`` to ``high`` into at most ``columns`` (>= 2) parts.

    Parts keep their places as a run grows. If ``high`` is an int, x has whole numbers only and the result is at least
    1.
    """
    span: float = 1 if isinstance(high, int) else _FINEST_SPAN
    while high // span - low // span >= columns:
        span *= 2
    return span


def starts_of(keys: Ints) -> Ints:
    """Return the place where each run of equal ``keys`` [n] begins."""
    if not len(keys):
        return np.zeros(0, np.int64)
    begins = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:])
    return np.flatnonzero(begins)
