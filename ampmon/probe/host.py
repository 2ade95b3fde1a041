"""Statistics of scaled gradients on a CPU, of a sample or of every element, in few passes over what is in cache.

To read a gradient from memory takes a CPU as long as to unscale it, so what counts is how often each is touched. Large
tensors are cut into blocks that the cache holds; small ones are put together, so that a pass over many costs one call.
Nothing here keeps a gradient alive, reads a clock or changes anything.
"""

from __future__ import annotations

import math
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
    looked = (
        flatten(gradient) if sample == "all" else sample_runs(gradient, sample, generator)
        for gradient in gradients
    )
    sums = _Sums([gradient.numel() for gradient in gradients], sampled=sample != "all")
    for block in _blocks(looked):
        sums.add(block)
    return sums.statistics(indices)


class _Block:
    """Elements of one or several tensors side by side, and the row of each tensor."""

    __slots__ = ("elements", "rows", "stops")

    def __init__(self, rows: list[int], parts: list[torch.Tensor]) -> None:
        self.rows = rows
        self.elements = _wide(parts[0]) if len(parts) == 1 else torch.cat(list(map(_wide, parts)))
        self.stops = np.cumsum([len(part) for part in parts]).tolist()


def _blocks(tensors: Iterable[torch.Tensor]) -> Iterator[_Block]:
    """Tensors cut, and put together where they are small. No block mixes fp64 with what fp32 holds."""
    rows: list[int] = []
    parts: list[torch.Tensor] = []
    length, wide = 0, False
    for row, tensor in enumerate(tensors):
        for part in tensor.split(_BLOCK):
            is_wide = part.dtype == torch.float64
            if parts and (length + len(part) > _BLOCK or is_wide != wide):
                yield _Block(rows, parts)
                rows, parts, length = [], [], 0
            rows.append(row)
            parts.append(part)
            length, wide = length + len(part), is_wide
    if parts:
        yield _Block(rows, parts)


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

    def set_flags(self, elements: torch.Tensor, array: npt.NDArray[Any]) -> None:
        """Which elements fp16 would change: those that are not on its grid, and NaN."""
        self._rounded.copy_(self._half.copy_(elements))
        # numpy compares floats several times faster than torch does on one thread.
        np.not_equal(array, self._rounded_array, out=self.flags)


class _Sums:
    """What has been counted so far of n tensors. What can wait for the end is then done for all of them at once."""

    def __init__(self, numels: list[int], *, sampled: bool) -> None:
        tensors = len(numels)
        self._numels = numels
        self._sampled = sampled
        self._looked = [0] * tensors
        self._zeros = [0] * tensors
        self._off_grid = [0] * tensors
        self._nan = [0] * tensors
        self._amax = [0.0] * tensors
        self._sum_squares = [0.0] * tensors
        self._run_squares = np.zeros((tensors, SMALL), np.int64)
        self._fields = {
            torch.float32: np.zeros((tensors, 256), np.int64),
            torch.float64: np.zeros((tensors, 2048), np.int64),
        }
        self._scratch_key = 0, torch.float32
        self._scratch = _Scratch(*self._scratch_key)

    def add(self, block: _Block) -> None:
        """Count the elements of a block: first what is done for all of it, then what is done for each tensor's part."""
        elements, array = block.elements, block.elements.numpy()
        scratch = self._room(elements)
        scratch.set_fields(array)
        scratch.set_flags(elements, array)
        start = 0
        for row, stop in zip(block.rows, block.stops, strict=True):
            self._add_part(row, elements, array, scratch, slice(start, stop))
            start = stop

    def _room(self, elements: torch.Tensor) -> _Scratch:
        key = len(elements), elements.dtype
        if self._scratch_key != key:
            self._scratch_key, self._scratch = key, _Scratch(*key)
        return self._scratch

    def _add_part(
        self,
        row: int,
        elements: torch.Tensor,
        array: npt.NDArray[Any],
        scratch: _Scratch,
        part: slice,
    ) -> None:
        elements, array = elements[part], array[part]
        sums = self._fields[elements.dtype]
        fields = scratch.fields_array[part]
        counts = torch.bincount(scratch.fields[part], minlength=sums.shape[1]).numpy()
        sums[row] += counts
        self._looked[row] += len(array)
        off_grid = int(np.count_nonzero(scratch.flags[part]))
        self._off_grid[row] += off_grid
        # What shares an exponent with zeros, or with inf, fp16 would change: where it changes nothing, there is none.
        zeros, nan = int(counts[0]), 0
        if zeros and off_grid:
            zeros = int(np.count_nonzero(array == 0))
        if counts[-1] and off_grid:
            nan = int(np.count_nonzero(np.isnan(array)))
        self._zeros[row] += zeros
        self._nan[row] += nan
        if self._sampled and len(array) < self._numels[row] and not len(array) % RUN:
            self._run_squares[row] += _run_squares(array, fields, counts, zeros)
        largest = _largest(array)
        if largest > self._amax[row] or math.isnan(
            largest
        ):  # a number never takes the place of a NaN
            self._amax[row] = largest
        self._sum_squares[row] += _sum_squares(elements, largest)

    def statistics(self, indices: Sequence[int]) -> Statistics:
        """The statistics of all n tensors."""
        fields = self._fields[torch.float32]
        histogram = _fold(fields) + _fold(self._fields[torch.float64])
        lowest = fields[:, 0] + self._fields[torch.float64][:, 0]
        not_finite = fields[:, -1] + self._fields[torch.float64][:, -1]
        looked, zeros, nan = (np.array(each) for each in (self._looked, self._zeros, self._nan))
        sampled = looked < np.array(self._numels)
        histogram[:, 0] += lowest - zeros
        return Statistics(
            parameters=np.asarray(indices, np.int32),
            looked=looked,
            zeros=zeros,
            on_grid=looked - np.array(self._off_grid),
            inf=not_finite - nan,
            nan=nan,
            amax=np.array(self._amax),
            sum_squares=np.array(self._sum_squares),
            histogram=histogram,
            run_squares=np.where(sampled[:, None], self._run_squares, 0),
        )


def _largest(elements: npt.NDArray[Any]) -> float:
    """The largest magnitude, NaN if there is one, which maximum and minimum both keep."""
    return float(max(np.maximum.reduce(elements), -np.minimum.reduce(elements)))


def _sum_squares(part: torch.Tensor, largest: float) -> float:
    if part.dtype == torch.float32 and not _SQUARED_EXACTLY[0] <= largest <= _SQUARED_EXACTLY[1]:
        part = part.double()
    return float(torch.dot(part, part))


def _run_squares(
    array: npt.NDArray[Any], fields: npt.NDArray[Any], counts: Ints, zeros: int
) -> Ints:
    """The sum over runs of 16 of the square of how many of each are zero, below the grid, subnormal: int64 [3]."""
    bias = len(counts) // 2 - 1
    grid, normal = FP16.exponent_min_subnormal + bias, FP16.exponent_min_normal + bias
    if not counts[:normal].any():
        return np.zeros(SMALL, np.int64)
    zero = run_counts(array == 0) if zeros else np.zeros(len(array) // RUN, np.int64)
    lowest = run_counts(fields < grid)
    below_grid, subnormal = lowest - zero, run_counts(fields < normal) - lowest
    return np.array([each @ each for each in (zero, below_grid, subnormal)])


def _fold(fields: Ints) -> Ints:
    """Counts by biased exponent [n, 256 or 2048], without the two special ones, as histograms with clamped ends."""
    bias = fields.shape[1] // 2 - 1
    first, last = EXPONENT_MIN + bias, EXPONENT_MIN + BINS - 1 + bias
    folded = fields[:, first : last + 1].copy()
    folded[:, 0] += fields[:, 1:first].sum(1)
    folded[:, -1] += fields[:, last + 1 : -1].sum(1)
    return folded
