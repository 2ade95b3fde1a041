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

from ampmon_server.model.series import Ints


Cells: TypeAlias = npt.NDArray[Any]
"""A structured array [n], in order of `first`; no two overlap."""

Kind: TypeAlias = str | tuple[str, int]
"""Of a field: `INT`, `FLOAT`, or one of them with how many of it."""

INT, FLOAT = "<i8", "<f8"


@dataclass(frozen=True, slots=True)
class Choice:
    """Fields taken from the cell in which the field ``by`` is ``most``, the earliest of those that have it.

    Where ``by`` is a vector, so are the ``carries``, as long as it is, and each place is chosen for itself; else they
    are of any length. NaN is neither.
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
    kind: str


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What a choice takes: ``columns`` [size, fields] of a cell's 8-byte words, the first of them chosen by."""

    reduce: np.ufunc
    kind: str
    columns: Ints


_REDUCE: Mapping[str, np.ufunc] = {"add": np.add, "least": np.fmin, "greatest": np.fmax}
_WIDE = 128
"""From so many columns on a cell at a time is quicker: `reduceat` goes through the rows once for each column."""


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

    dtype: np.dtype[Any] = field(init=False)
    _groups: Sequence[_Group] = field(init=False, repr=False)
    _chosen: Sequence[_Chosen] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        fields, groups = self._grouped()
        chosen = []
        at = groups[-1].stop
        for choice in self.choices:
            kind, size = _pair(choice.kind)
            names = {choice.by: choice.kind, **choice.carries}
            fields += [_field(name, *_pair(each)) for name, each in names.items()]
            words = sum(_pair(each)[1] for each in names.values())
            columns = at + np.arange(words).reshape(-1, size).T
            chosen.append(_Chosen(_REDUCE[choice.most], kind, columns))
            at += words
        object.__setattr__(self, "dtype", np.dtype(fields))
        object.__setattr__(self, "_groups", groups)
        object.__setattr__(self, "_chosen", chosen)

    def merge(self, cells: Cells, starts: Ints) -> Cells:
        """Cells [g], each of those of ``cells`` from one of ``starts`` [g] to the next. Copies."""
        if len(starts) == len(cells):
            return cells.copy()
        merged = np.empty(len(starts), self.dtype)
        ends = np.append(starts[1:], len(cells)) - 1
        words, into = {}, {}
        for kind in (INT, FLOAT):
            words[kind], into[kind] = _words(cells, kind), _words(merged, kind)
        for group in self._groups:
            columns = words[group.kind][:, group.start : group.stop]
            if group.how == "first":
                found = columns[starts]
            elif group.how == "last":
                found = columns[ends]
            else:
                found = _reduced(_REDUCE[group.how], columns, starts)
            into[group.kind][:, group.start : group.stop] = found
        of = np.repeat(np.arange(len(starts)), ends - starts + 1)
        for choice in self._chosen:
            rows = _choose(choice, words[choice.kind], starts, of)
            into[INT][:, choice.columns] = words[INT][rows[:, :, None], choice.columns]
        return merged

    def _grouped(self) -> tuple[list[tuple[Any, ...]], list[_Group]]:
        """The fields that are not chosen, and what of them merges alike."""
        fields: list[tuple[Any, ...]] = []
        groups: list[_Group] = []
        at = 0
        for how in ("first", "last", "add", "least", "greatest"):
            named = [(name, *_pair(kind)) for name, kind in getattr(self, how).items()]
            for real in (INT, FLOAT):
                alike = [each for each in named if each[1] == real]
                stop = at + sum(size for _, _, size in alike)
                fields += [_field(*each) for each in alike]
                groups += [_Group(how, at, stop, real)] if alike else []
                at = stop
        return fields, groups


def _reduced(reduce: np.ufunc, columns: npt.NDArray[Any], starts: Ints) -> npt.NDArray[Any]:
    """The rows of ``columns`` [n, words] from one of ``starts`` [g] to the next as one, [g, words]."""
    if columns.shape[1] < _WIDE:
        return np.asarray(reduce.reduceat(columns, starts, axis=0))
    found = np.empty((len(starts), columns.shape[1]), columns.dtype)
    ends = [*starts[1:].tolist(), len(columns)]
    for row, start, end in zip(found, starts.tolist(), ends, strict=True):
        reduce.reduce(columns[start:end], axis=0, out=row)
    return found


def _choose(choice: _Chosen, words: npt.NDArray[Any], starts: Ints, of: Ints) -> Ints:
    """The row that is chosen for each cell and each place of the field, [g, size]; ``of`` is the cell of each row."""
    values = words[:, choice.columns[:, 0]]
    best = choice.reduce.reduceat(values, starts, axis=0)
    rows = np.where(values == best[of], np.arange(len(words))[:, None], len(words))
    first: Ints = np.minimum.reduceat(rows, starts, axis=0)
    # Where there is nothing but NaN, any will do.
    return np.where(first < len(words), first, starts[:, None])


def _pair(kind: Kind) -> tuple[str, int]:
    return (kind, 1) if isinstance(kind, str) else kind


def _field(name: str, kind: str, size: int) -> tuple[Any, ...]:
    return (name, kind) if size == 1 else (name, kind, (size,))


def _words(cells: Cells, kind: str) -> npt.NDArray[Any]:
    """The 8-byte words of cells, [n, words]; no copy."""
    return cells.view(kind).reshape(len(cells), cells.dtype.itemsize // 8)


def joined(parts: Sequence[Cells]) -> Cells:
    """Cells one after another, of at least one part. `np.concatenate` would compare the dtypes field by field."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.view(INT) for part in parts]).view(parts[0].dtype)


def starts_of(keys: Ints) -> Ints:
    """Where each run of equal ``keys`` [n] begins."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)
