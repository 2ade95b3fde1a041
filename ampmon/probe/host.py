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

_BIAS = 127
_NARROWED = slice(1023 - _BIAS, 1023 - _BIAS + 256)
"""Where fp32's biased exponents lie among those of fp64."""

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

    __slots__ = (
        "_half",
        "_memory",
        "_rounded",
        "_rounded_array",
        "fields",
        "fields_array",
        "flags",
    )

    def __init__(self, *memory: torch.Tensor) -> None:
        self._memory = memory
        self.fields, self._half, self._rounded, flags = memory
        self.fields_array = self.fields.numpy()
        self._rounded_array = self._rounded.numpy()
        self.flags = flags.numpy()

    @classmethod
    def of(cls, dtype: torch.dtype) -> _Scratch:
        """Room for a whole block."""
        fields = torch.uint8 if dtype == torch.float32 else torch.int16
        dtypes = fields, torch.float16, dtype, torch.bool
        # The device is named, for the user may have made another one the default.
        return cls(*(torch.empty(_BLOCK, dtype=each, device="cpu") for each in dtypes))

    def first(self, size: int) -> _Scratch:
        """The same room, as much of it as ``size`` elements need."""
        return _Scratch(*(each[:size] for each in self._memory))

    def set_fields(self, elements: npt.NDArray[Any]) -> None:
        """The biased exponent of each: uint8, or int16 of fp64. 0 has zeros and subnormals, the last inf and NaN."""
        if elements.dtype == np.float64:
            bits = elements.view(np.int64) >> 52
            np.bitwise_and(bits, 0x7FF, out=self.fields_array, casting="unsafe")
        else:
            bits = elements.view(np.int32)
            # A byte has no room for the sign.
            np.right_shift(bits, 23, out=self.fields_array, casting="unsafe")

    def set_flags(self, elements: torch.Tensor, array: npt.NDArray[Any]) -> None:
        """Which elements fp16 would change: those that are not on its grid, and NaN."""
        self._rounded.copy_(self._half.copy_(elements))
        # numpy compares floats several times faster than torch does on one thread.
        np.not_equal(array, self._rounded_array, out=self.flags)


class _Sums:
    """What has been counted so far of n tensors. What can wait for the end is then done for all of them at once.

    Between two blocks the caches hold a gradient and nothing of Python: there a call costs three times as much.
    """

    def __init__(self, tensors: int) -> None:
        self._parts: list[tuple[float, ...]] = []
        """Of each part its row, how many elements it has, and what was counted of them."""
        self._fields = np.zeros((tensors, 256), np.int64)
        self._run_squares = np.zeros((tensors, SMALL), np.int64)
        self._rooms: dict[torch.dtype, dict[int, _Scratch]] = {}

    def add(self, block: _Block) -> None:
        """Count the elements of a block."""
        elements, array = block.elements, block.elements.numpy()
        scratch = self._room(elements)
        # The pass that is cheapest in cache goes first, for it waits for memory.
        scratch.set_flags(elements, array)
        scratch.set_fields(array)
        stop = 0
        parts = elements.split(block.lengths), scratch.fields.split(block.lengths)
        for row, part, fields in zip(block.rows, *parts, strict=True):
            start, stop = stop, stop + len(part)
            counts = _count_fields(fields)
            self._fields[row] += counts
            flags = scratch.flags[start:stop]
            self._parts.append((row, len(part), *_count(part, array[start:stop], flags, counts)))
        if block.sampled:
            self._run_squares[block.rows] += _run_squares(array, scratch, block.lengths)

    def _room(self, elements: torch.Tensor) -> _Scratch:
        size, dtype = len(elements), elements.dtype
        rooms = self._rooms.get(dtype) or self._rooms.setdefault(
            dtype, {_BLOCK: _Scratch.of(dtype)}
        )
        return rooms.get(size) or rooms.setdefault(size, rooms[_BLOCK].first(size))

    def statistics(self, indices: Sequence[int]) -> Statistics:
        """The statistics of all n tensors."""
        parts = np.array(self._parts, np.float64).reshape(-1, 7)  # fp64 counts exactly to 2^53
        rows = parts[:, 0].astype(np.int64)
        looked, zeros, off_grid, nan = (
            np.bincount(rows, each, len(indices)).astype(np.int64) for each in parts[:, 1:5].T
        )
        amax = np.zeros(len(indices))
        with np.errstate(invalid="ignore"):
            np.maximum.at(amax, rows, parts[:, 5])  # which keeps a NaN
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


def _count_fields(fields: torch.Tensor) -> Ints:
    """How often each biased exponent of fp32 is there, [256]; what of fp64 is beyond them is counted at their ends."""
    if fields.dtype == torch.uint8:
        return torch.bincount(fields, minlength=256).numpy()
    wide = torch.bincount(fields, minlength=2048).numpy()
    counts = wide[_NARROWED].copy()
    counts[0], counts[-1] = wide[0], wide[-1]
    counts[1] = wide[1 : _NARROWED.start + 2].sum()
    counts[-2] = wide[_NARROWED.stop - 2 : -1].sum()
    return counts


def _count(
    part: torch.Tensor, array: npt.NDArray[Any], flags: npt.NDArray[np.bool_], counts: Ints
) -> tuple[int, int, int, float, float]:
    """Zeros, elements off fp16's grid, NaN, the largest magnitude and the sum of squares of a part.

    ``flags`` are set of what is off the grid, ``counts`` are by exponent.
    """
    zeros, off_grid, nan = int(counts[0]), int(np.count_nonzero(flags)), 0
    # What shares an exponent with zeros, or with inf, fp16 would change: where it changes nothing, there is none.
    if off_grid:
        zeros = zeros and int(np.count_nonzero(array == 0))
        nan = int(counts[-1]) and int(np.count_nonzero(np.isnan(array)))
    highest, lowest = np.maximum.reduce(array), np.minimum.reduce(array)
    largest = float(max(highest, -lowest))  # if one is NaN, so is the other
    return zeros, off_grid, nan, largest, _sum_squares(part, largest)


def _sum_squares(part: torch.Tensor, largest: float) -> float:
    if part.dtype == torch.float32 and not _SQUARED_EXACTLY[0] <= largest <= _SQUARED_EXACTLY[1]:
        part = part.double()
    return float(torch.dot(part, part))


def _run_squares(array: npt.NDArray[Any], scratch: _Scratch, lengths: list[int]) -> Ints:
    """The sum over a part's runs of 16 of the square of how many are zero, below the grid, subnormal: [parts, 3]."""
    bias = _BIAS if array.dtype == np.float32 else 1023
    grid, normal = FP16.exponent_min_subnormal + bias, FP16.exponent_min_normal + bias
    fields, flags = scratch.fields_array, scratch.flags
    zero = run_counts(np.equal(array, 0, out=flags))
    lowest = run_counts(np.less(fields, grid, out=flags))
    subnormal = run_counts(np.less(fields, normal, out=flags)) - lowest
    counts = np.stack([zero, lowest - zero, subnormal])
    starts = np.cumsum([0, *lengths[:-1]]) // RUN
    return np.add.reduceat(counts * counts, starts, axis=1).T


def _fold(fields: Ints) -> Ints:
    """Counts by fp32's biased exponent [n, 256], without the two special ones, as histograms with clamped ends."""
    first = EXPONENT_MIN + _BIAS
    last = first + BINS - 1
    folded = fields[:, first : last + 1].copy()
    folded[:, 0] += fields[:, 1:first].sum(1)
    folded[:, -1] += fields[:, last + 1 : -1].sum(1)
    return folded
