"""How several cells become one, said field by field. Knows neither what a field means nor where cells are kept.

A cell is a row of a structured array whose fields are all int64 or float64, or short vectors of them. The fields that
every cell has are `first` and `last`, the first and the last step in it, and `n`, how many rows it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon_server.series import Ints


Cells: TypeAlias = npt.NDArray[Any]
"""A structured array [n], in order of `first`; no two overlap."""

Kind: TypeAlias = str | tuple[str, int]
"""Of a field: `INT`, `FLOAT`, or one of them with how many of it."""

INT, FLOAT = "<i8", "<f8"


@dataclass(frozen=True, slots=True)
class Choice:
    """Fields taken from the cell in which the field ``by`` is ``most``, the earliest of those that have it.

    Where ``by`` is a vector, so are the ``carries``, and each place is chosen for itself. NaN is neither.
    """

    most: Literal["least", "greatest"]
    by: str
    kind: Kind
    carries: Mapping[str, Kind]


@dataclass(frozen=True, slots=True)
class _Group:
    """Fields that merge alike, side by side: columns ``start`` to ``stop`` of a cell's 8-byte words."""

    how: str
    start: int
    stop: int
    real: bool


_REDUCE: Mapping[str, np.ufunc] = {"add": np.add, "least": np.fmin, "greatest": np.fmax}


@dataclass(frozen=True)
class Layout:
    """The fields of a cell by how they merge: of the first cell, of the last, added, the least, the greatest.

    ``dtype`` is theirs in memory and on disk. In `least` and `greatest` a NaN gives way to any number.
    """

    first: Mapping[str, Kind]
    last: Mapping[str, Kind]
    add: Mapping[str, Kind]
    least: Mapping[str, Kind] = field(default_factory=dict)
    greatest: Mapping[str, Kind] = field(default_factory=dict)
    choices: Sequence[Choice] = ()

    def __post_init__(self) -> None:
        fields, groups = self._arranged()
        object.__setattr__(self, "dtype", np.dtype(fields))
        object.__setattr__(self, "_groups", groups)

    dtype: np.dtype[Any] = field(init=False)
    _groups: Sequence[_Group] = field(init=False, repr=False)

    def merge(self, cells: Cells, starts: Ints) -> Cells:
        """Cells [g], each of those of ``cells`` from one of ``starts`` [g] to the next. Copies."""
        merged = np.empty(len(starts), self.dtype)
        if not len(starts):
            return merged
        ends = np.append(starts[1:], len(cells)) - 1
        words, into = _words(cells, INT), _words(merged, INT)
        for group in self._groups:
            columns = slice(group.start, group.stop)
            if group.how == "first":
                into[:, columns] = words[starts, columns]
            elif group.how == "last":
                into[:, columns] = words[ends, columns]
            else:
                kind = FLOAT if group.real else INT
                _words(merged, kind)[:, columns] = _REDUCE[group.how].reduceat(
                    _words(cells, kind)[:, columns], starts, axis=0
                )
        for choice in self.choices:
            _choose(choice, cells, starts, merged)
        return merged

    def _arranged(self) -> tuple[list[tuple[Any, ...]], list[_Group]]:
        fields: list[tuple[Any, ...]] = []
        groups: list[_Group] = []
        at = 0
        for how in ("first", "last", "add", "least", "greatest"):
            alike: Mapping[str, Kind] = getattr(self, how)
            for real in (False, True):
                named = [(name, *_pair(kind)) for name, kind in alike.items()]
                chosen = [each for each in named if (each[1] == FLOAT) is real]
                stop = at + sum(size for _, _, size in chosen)
                fields += [_field(*each) for each in chosen]
                groups += [_Group(how, at, stop, real)] if chosen else []
                at = stop
        for choice in self.choices:
            for name, kind in {choice.by: choice.kind, **choice.carries}.items():
                fields.append(_field(name, *_pair(kind)))
        return fields, groups


def _pair(kind: Kind) -> tuple[str, int]:
    return (kind, 1) if isinstance(kind, str) else kind


def _field(name: str, kind: str, size: int) -> tuple[Any, ...]:
    return (name, kind) if size == 1 else (name, kind, (size,))


def _words(cells: Cells, kind: str) -> npt.NDArray[Any]:
    """The 8-byte words of cells, [n, words]; no copy."""
    return cells.view(kind).reshape(len(cells), -1)


def _choose(choice: Choice, cells: Cells, starts: Ints, merged: Cells) -> None:
    values = _wide(cells[choice.by])
    best = _REDUCE[choice.most].reduceat(values, starts, axis=0)
    sizes = np.diff(starts, append=len(cells))
    rows = np.arange(len(cells))[:, None]
    hits = np.where(values == np.repeat(best, sizes, axis=0), rows, len(cells))
    chosen = np.minimum.reduceat(hits, starts, axis=0)
    # Where there is nothing but NaN, any will do.
    chosen = np.where(chosen < len(cells), chosen, starts[:, None])
    for name in (choice.by, *choice.carries):
        _wide(merged[name])[...] = np.take_along_axis(_wide(cells[name]), chosen, axis=0)


def _wide(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A column as [n, size], a view."""
    return column if column.ndim > 1 else column[:, None]


def starts_of(keys: Ints) -> Ints:
    """Where each run of equal ``keys`` [n] begins."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.diff(keys, prepend=keys[0] - 1)).astype(np.int64)
