"""Statistics of scaled gradients on a CPU, of a sample or of every element, in few passes over what is in cache.

To read a gradient from memory takes a CPU as long as to unscale it, so what counts is how often each is touched. Large
tensors are cut into blocks that the cache holds; small ones are put together, so that a pass over many costs one call.
Nothing here keeps a gradient alive, reads a clock or changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from ampmon.estimates import run_counts
from ampmon.formats import FP16
from ampmon.histogram import BINS, EXPONENT_MIN, RUN, SMALL, Statistics
from ampmon.probe.sampling import flatten, sample_runs


_BLOCK = 1 << 17
"""Elements measured together: 512 kB of fp32, so that the passes after the first find most of them in cache."""

_SQUARED_EXACTLY = (2.0**-40, 2.0**50)
"""Where a block's largest magnitude lies in here, squares summed in fp32 neither overflow nor lose what matters."""

Ints = npt.NDArray[np.int64]


def measure(
    gradients: Sequence[torch.Tensor],
    indices: Sequence[int],
    sample: int | Literal["all"],
    generator: np.random.Generator,
) -> Statistics:
    """Statistics of n CPU gradients of any floating dtype and shape; ``indices`` are their places in the header.

    ``sample`` is the least number of elements to look at in each, in runs of 16, or "all". Counts and amax are exact.
    The sum of squares is of fp32 products, added up in fp32 within a block of 131072 elements and in fp64 beyond: its
    relative error is about 1e-6.
    """
    sums = _Sums(len(gradients))
    # The largest first: those of which a sample is taken then lie together, and so do those that are looked at whole.
    order = sorted(range(len(gradients)), key=lambda row: -gradients[row].numel())
    for block in _blocks(order, gradients, sample, generator):
        sums.add(block)
    return sums.statistics(indices)


class _Block:
    """Elements of one tensor or side by side of several, of each tensor one part; and the row of each tensor."""

    __slots__ = ("elements", "lengths", "rows", "sampled")

    def __init__(self, rows: list[int], parts: list[torch.Tensor], *, sampled: bool) -> None:
        self.rows = rows
        self.sampled = sampled
        self.lengths = [len(part) for part in parts]
        self.elements = _wide(parts[0]) if len(parts) == 1 else torch.cat(list(map(_wide, parts)))


def _blocks(
    order: Iterable[int],
    gradients: Sequence[torch.Tensor],
    sample: int | Literal["all"],
    generator: np.random.Generator,
) -> Iterator[_Block]:
    """Tensors cut, and put together where they are small; blocks hold what is alike in kind."""
    rows: list[int] = []
    parts: list[torch.Tensor] = []
    length, kind = 0, (False, False)
    for row in order:
        gradient = gradients[row]
        looked = flatten(gradient) if sample == "all" else sample_runs(gradient, sample, generator)
        of_kind = len(looked) < gradient.numel(), looked.dtype == torch.float64
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
    """Values in a dtype that has fp32's or fp64's exponent field: half precision widens exactly."""
    return part if part.dtype in (torch.float32, torch.float64) else part.float()


class _Scratch:
    """Room for the passes over so many elements, used block after block: new memory costs more than a pass over old.

    The same memory is there as tensors and as arrays, for to make either of the other costs as much as a short pass.
    """

    __slots__ = ("_half", "_rounded", "_rounded_array", "fields", "fields_array", "flags")

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.fields = torch.empty(
            size, dtype=torch.uint8 if dtype == torch.float32 else torch.int16
        )
        self.fields_array = self.fields.numpy()
        self._half = torch.empty(size, dtype=torch.float16)
        self._rounded = torch.empty(size, dtype=dtype)
        self._rounded_array = self._rounded.numpy()
        self.flags = np.empty(size, bool)

    def set_fields(self, elements: npt.NDArray[Any]) -> None:
        """The biased exponent of each: uint8, or int16 of fp64. 0 has zeros and subnormals, the last inf and NaN."""
        if elements.dtype == np.float64:
            bits = elements.view(np.int64) >> 52
            np.bitwise_and(bits, 0x7FF, out=self.fields_array, casting="unsafe")
        else:
            bits = elements.view(np.int32)
            np.right_shift(
                bits, 23, out=self.fields_array, casting="unsafe"
            )  # a byte drops the sign

    def count_fields(self, lengths: list[int]) -> Ints:
        """How often each part, given by its length, has each exponent: [parts, 256 or 2048]."""
        size = 256 if self.fields.dtype == torch.uint8 else 2048
        parts = self.fields.split(lengths)
        return np.stack([torch.bincount(part, minlength=size).numpy() for part in parts])

    def set_flags(self, elements: torch.Tensor, array: npt.NDArray[Any]) -> None:
        """Which elements fp16 would change: those that are not on its grid, and NaN."""
        self._rounded.copy_(self._half.copy_(elements))
        # numpy compares floats several times faster than torch does on one thread.
        np.not_equal(array, self._rounded_array, out=self.flags)


class _Sums:
    """What has been counted so far of n tensors. What can wait for the end is then done for all of them at once."""

    def __init__(self, tensors: int) -> None:
        self._looked = np.zeros(tensors, np.int64)
        self._zeros = np.zeros(tensors, np.int64)
        self._off_grid = np.zeros(tensors, np.int64)
        self._nan = np.zeros(tensors, np.int64)
        self._amax = np.zeros(tensors)
        self._sum_squares = np.zeros(tensors)
        self._run_squares = np.zeros((tensors, SMALL), np.int64)
        self._fields = {
            torch.float32: np.zeros((tensors, 256), np.int64),
            torch.float64: np.zeros((tensors, 2048), np.int64),
        }
        self._scratch_key = 0, torch.float32
        self._scratch = _Scratch(*self._scratch_key)

    def add(self, block: _Block) -> None:
        """Count the elements of a block."""
        elements, array, rows = block.elements, block.elements.numpy(), block.rows
        stops: Ints = np.cumsum(block.lengths, dtype=np.int64)
        starts = stops - block.lengths
        scratch = self._room(elements)
        scratch.set_fields(array)
        scratch.set_flags(elements, array)
        counts = scratch.count_fields(block.lengths)
        off_grid = _count(scratch.flags, starts)
        zeros, nan = counts[:, 0], np.zeros(len(rows), np.int64)
        # What shares an exponent with zeros, or with inf, fp16 would change: where it changes nothing, there is none.
        if off_grid.any():
            zeros = _count(array == 0, starts) if zeros.any() else zeros
            nan = _count(np.isnan(array), starts) if counts[:, -1].any() else nan
        largest = np.maximum(
            np.maximum.reduceat(array, starts), -np.minimum.reduceat(array, starts)
        )
        self._fields[elements.dtype][rows] += counts
        self._looked[rows] += block.lengths
        self._off_grid[rows] += off_grid
        self._zeros[rows] += zeros
        self._nan[rows] += nan
        self._amax[rows] = np.maximum(self._amax[rows], largest)  # which keeps a NaN
        self._sum_squares[rows] += [
            _sum_squares(part, amax)
            for part, amax in zip(elements.split(block.lengths), largest.tolist(), strict=True)
        ]
        if block.sampled:
            self._run_squares[rows] += _run_squares(array, scratch, counts, starts)

    def _room(self, elements: torch.Tensor) -> _Scratch:
        key = len(elements), elements.dtype
        if self._scratch_key != key:
            self._scratch_key, self._scratch = key, _Scratch(*key)
        return self._scratch

    def statistics(self, indices: Sequence[int]) -> Statistics:
        """The statistics of all n tensors."""
        single, double = self._fields[torch.float32], self._fields[torch.float64]
        histogram = _fold(single) + _fold(double)
        histogram[:, 0] += single[:, 0] + double[:, 0] - self._zeros
        return Statistics(
            parameters=np.asarray(indices, np.int32),
            looked=self._looked,
            zeros=self._zeros,
            on_grid=self._looked - self._off_grid,
            inf=single[:, -1] + double[:, -1] - self._nan,
            nan=self._nan,
            amax=self._amax,
            sum_squares=self._sum_squares,
            histogram=histogram,
            run_squares=self._run_squares,
        )


def _count(flags: npt.NDArray[np.bool_], starts: Ints) -> Ints:
    """How many of each part, given by where it starts, are set."""
    stops = [*starts[1:].tolist(), len(flags)]
    parts = zip(starts.tolist(), stops, strict=True)
    return np.array([np.count_nonzero(flags[start:stop]) for start, stop in parts], np.int64)


def _sum_squares(part: torch.Tensor, largest: float) -> float:
    if part.dtype == torch.float32 and not _SQUARED_EXACTLY[0] <= largest <= _SQUARED_EXACTLY[1]:
        part = part.double()
    return float(torch.dot(part, part))


def _run_squares(array: npt.NDArray[Any], scratch: _Scratch, counts: Ints, starts: Ints) -> Ints:
    """The sum over a part's runs of 16 of the square of how many are zero, below the grid, subnormal: [parts, 3]."""
    bias = counts.shape[1] // 2 - 1
    grid, normal = FP16.exponent_min_subnormal + bias, FP16.exponent_min_normal + bias
    squares = np.zeros((len(starts), SMALL), np.int64)
    if counts[:, :normal].any():
        fields, flags = scratch.fields_array, scratch.flags
        zero = run_counts(np.equal(array, 0, out=flags))
        lowest = run_counts(np.less(fields, grid, out=flags))
        subnormal = run_counts(np.less(fields, normal, out=flags)) - lowest
        for place, each in enumerate((zero, lowest - zero, subnormal)):
            squares[:, place] = np.add.reduceat(each * each, starts // RUN)
    return squares


def _fold(fields: Ints) -> Ints:
    """Counts by biased exponent [n, 256 or 2048], without the two special ones, as histograms with clamped ends."""
    bias = fields.shape[1] // 2 - 1
    first, last = EXPONENT_MIN + bias, EXPONENT_MIN + BINS - 1 + bias
    folded = fields[:, first : last + 1].copy()
    folded[:, 0] += fields[:, 1:first].sum(1)
    folded[:, -1] += fields[:, last + 1 : -1].sum(1)
    return folded
