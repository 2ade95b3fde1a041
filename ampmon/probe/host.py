"""Statistics of scaled gradients on a CPU, of a sample or of every element, in few passes over cached data.

Reading a gradient from memory takes a CPU as long as unscaling it, so the number of reads matters most. Large tensors
are cut into blocks that fit into the cache. Small ones are joined, so that a pass over many of them costs one call.
Nothing here keeps a gradient alive, reads a clock or changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ampmon.numerics.histogram import BINS, EXPONENT_MIN, SMALL, Statistics
from ampmon.probe import passes
from ampmon.probe.passes import Scratch
from ampmon.probe.sampling import flatten, sample_runs


_BLOCK = 1 << 17
"""Elements measured together: 512 kB of fp32, so that passes after the first find most of them in cache."""

Ints = npt.NDArray[np.int64]


def measure(
    gradients: Sequence[torch.Tensor],
    indices: Sequence[int],
    sample: int | Literal["all"],
    generator: np.random.Generator,
) -> Statistics:
    """Return statistics of n CPU gradients of any floating dtype and shape. ``indices`` are their places in the header.

    ``sample`` is the least number of elements to look at in each, in runs of 16, or "all". Counts and amax are exact
    for these elements. The sum of squares adds fp32 products, in fp32 within a row of 1024 elements and in fp64 beyond
    it. Its relative error is below 1e-6.
    """
    # Largest first, so that sampled gradients are adjacent, and so are those measured whole.
    order = sorted(range(len(gradients)), key=lambda row: -gradients[row].numel())
    drawn = (
        (row, draw(gradients[row], sample, generator), gradients[row].numel()) for row in order
    )
    return _measure(drawn, indices)


def draw(
    gradient: torch.Tensor, sample: int | Literal["all"], generator: np.random.Generator
) -> torch.Tensor:
    """Return the elements of a gradient to look at: a copy if they are fewer than all."""
    return flatten(gradient) if sample == "all" else sample_runs(gradient, sample, generator)


def measure_drawn(
    parts: Sequence[torch.Tensor], numels: Sequence[int], indices: Sequence[int]
) -> Statistics:
    """Do `measure` for elements drawn earlier from tensors of ``numels`` elements. An index may occur several times."""
    order = sorted(range(len(parts)), key=lambda row: -numels[row])
    return _measure(((row, parts[row], numels[row]) for row in order), indices)


_Drawn: TypeAlias = Iterable[tuple[int, torch.Tensor, int]]
"""For each tensor: its row, the elements to look at, and its size."""


def _measure(drawn: _Drawn, indices: Sequence[int]) -> Statistics:
    sums = _Sums(len(indices))
    for block in _blocks(drawn):
        sums.add(block)
    return sums.statistics(indices)


class _Block:
    """Elements of one or more tensors side by side, one part for each tensor, and the row of each tensor."""

    __slots__ = ("elements", "lengths", "rows", "sampled")

    def __init__(self, rows: list[int], parts: list[torch.Tensor], *, sampled: bool) -> None:
        self.rows = rows
        self.sampled = sampled
        self.lengths = [len(part) for part in parts]
        self.elements = _wide(parts[0]) if len(parts) == 1 else torch.cat(list(map(_wide, parts)))


def _blocks(drawn: _Drawn) -> Iterator[_Block]:
    """Cut large tensors and join small ones. A block's parts are all sampled or all whole, and all fp64 or none."""
    rows: list[int] = []
    parts: list[torch.Tensor] = []
    length, kind = 0, (False, False)
    for row, looked, numel in drawn:
        of_kind = len(looked) < numel, looked.dtype == torch.float64
        for part in looked.split(_BLOCK):
            if parts and (length + len(part) > _BLOCK or of_kind != kind):
                yield _Block(rows, parts, sampled=kind[0])
                rows, parts, length = [], [], 0
            rows.append(row)
            parts.append(part)
            length, kind = length + len(part), of_kind
    if parts:
        yield _Block(rows, parts, sampled=kind[0])


def _wide(part: torch.Tensor) -> torch.Tensor:
    """Widen half precision, exactly, so that values have fp32's or fp64's exponent field."""
    return part if part.dtype in (torch.float32, torch.float64) else part.float()


class _Sums:
    """The counts of n tensors so far. Work that can wait is done at the end, for all of them at once.

    Between two blocks the caches hold gradients and none of Python's data, so a call there costs three times as much.
    """

    def __init__(self, tensors: int) -> None:
        self._parts: list[tuple[float, ...]] = []
        """For each part: its row, its number of elements, and its `passes.Counted`."""
        self._fields = np.zeros((tensors, 256), np.int64)
        self._run_squares = np.zeros((tensors, SMALL), np.int64)
        self._rooms: dict[torch.dtype, dict[int, Scratch]] = {}

    def add(self, block: _Block) -> None:
        scratch = self._room(block.elements)
        scratch.fill(block.elements)
        counted, exponents = passes.count(block.elements, scratch, block.lengths)
        self._fields[block.rows] += exponents
        self._parts += [
            (row, length, *each)
            for row, length, each in zip(block.rows, block.lengths, counted, strict=True)
        ]
        if block.sampled:
            squares = passes.run_squares(block.elements.numpy(), scratch, block.lengths)
            self._run_squares[block.rows] += squares

    def _room(self, elements: torch.Tensor) -> Scratch:
        size, dtype = len(elements), elements.dtype
        if dtype not in self._rooms:
            self._rooms[dtype] = {_BLOCK: Scratch.of(_BLOCK, dtype)}
        rooms = self._rooms[dtype]
        return rooms.get(size) or rooms.setdefault(size, rooms[_BLOCK].first(size))

    def statistics(self, indices: Sequence[int]) -> Statistics:
        parts = np.array(self._parts, np.float64).reshape(-1, 7)  # fp64 counts exactly to 2^53
        rows = parts[:, 0].astype(np.int64)
        looked, zeros, off_grid, nan = (
            np.bincount(rows, each, len(indices)).astype(np.int64) for each in parts[:, 1:5].T
        )
        amax = np.zeros(len(indices))
        with np.errstate(invalid="ignore"):
            np.maximum.at(amax, rows, parts[:, 5])  # keeps a NaN
        histogram = _fold(self._fields)
        histogram[:, 0] += self._fields[:, 0] - zeros
        return Statistics(
            parameters=np.asarray(indices, np.int32),
            looked=looked,
            zeros=zeros,
            on_grid=looked - off_grid,
            inf=self._fields[:, -1] - nan,
            nan=nan,
            amax=amax,
            sum_squares=np.bincount(rows, parts[:, 6], len(indices)).astype(np.float64),
            histogram=histogram,
            run_squares=self._run_squares,
        )


def _fold(fields: Ints) -> Ints:
    """Turn counts by fp32's biased exponent [n, 256] into histograms with clamped ends.

    Leaves out the two special exponents.
    """
    first = EXPONENT_MIN + passes.BIAS
    last = first + BINS - 1
    folded = fields[:, first : last + 1].copy()
    folded[:, 0] += fields[:, 1:first].sum(1)
    folded[:, -1] += fields[:, last + 1 : -1].sum(1)
    return folded
