"""Statistics of scaled gradients on a CPU, of a sample or of every element, in few passes over cached data.

Reading a gradient from memory takes a CPU as long as unscaling it, so the number of reads matters most. Large tensors
are cut into blocks that fit into the cache. Small ones are joined, so that a pass over many of them costs one call.
Nothing here keeps a gradient alive, reads a clock or changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import BINS, EXPONENT_MIN, SMALL, Statistics
from ampmon.numerics.sampling_error import RUN, Ints, run_counts
from ampmon.probe.gradients import flatten, sample_runs, widened


_BLOCK = 1 << 17
"""Elements measured together: 512 kB of fp32, so that passes after the first find most of them in cache."""


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


Drawn: TypeAlias = tuple[int, torch.Tensor, int]
"""A tensor's index or row, the elements to look at, and its size."""


def measure_drawn(drawn: Sequence[Drawn]) -> Statistics:
    """Do `measure` for elements drawn earlier. An index may occur several times."""
    order = sorted(range(len(drawn)), key=lambda row: -drawn[row][2])
    return _measure(((row, *drawn[row][1:]) for row in order), [index for index, _, _ in drawn])


def _measure(drawn: Iterable[Drawn], indices: Sequence[int]) -> Statistics:
    sums = _Sums(len(indices))
    for rows, parts, sampled in _blocks(drawn):
        sums.add(rows, parts, sampled=sampled)
    return sums.statistics(indices)


def _blocks(drawn: Iterable[Drawn]) -> Iterator[tuple[list[int], list[torch.Tensor], bool]]:
    """Cut large tensors and join small ones into blocks. Yield each block's rows, a part for each, and its kind.

    Its parts are all sampled (True) or all whole.
    """
    rows: list[int] = []
    parts: list[torch.Tensor] = []
    length, kind = 0, False
    for row, looked, numel in drawn:
        of_kind = len(looked) < numel
        for part in looked.split(_BLOCK):
            if parts and (length + len(part) > _BLOCK or of_kind != kind):
                yield rows, parts, kind
                rows, parts, length = [], [], 0
            rows.append(row)
            parts.append(part)
            length, kind = length + len(part), of_kind
    if parts:
        yield rows, parts, kind


class _Sums:
    """The counts of n tensors so far. Work that can wait is done at the end, for all of them at once.

    Between two blocks the caches hold gradients and none of Python's data, so a call there costs three times as much.
    """

    def __init__(self, tensors: int) -> None:
        self._parts: list[tuple[float, ...]] = []
        """For each part: its row, its number of elements, and its `Counted`."""
        self._fields = np.zeros((tensors, 256), np.int64)
        self._run_squares = np.zeros((tensors, SMALL), np.int64)
        self._rooms: dict[torch.dtype, dict[int, Scratch]] = {}

    def add(self, rows: list[int], parts: list[torch.Tensor], *, sampled: bool) -> None:
        wide = [widened(part) for part in parts]
        elements = wide[0] if len(wide) == 1 else torch.cat(wide)
        lengths = [len(part) for part in parts]
        scratch = self._room(elements)
        scratch.fill(elements)
        counted, exponents = count(elements, scratch, lengths)
        self._fields[rows] += exponents
        self._parts += [
            (row, length, *each) for row, length, each in zip(rows, lengths, counted, strict=True)
        ]
        if sampled:
            self._run_squares[rows] += run_squares(elements.numpy(), scratch, lengths)

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
    first = EXPONENT_MIN + BIAS
    last = first + BINS - 1
    folded = fields[:, first : last + 1].copy()
    folded[:, 0] += fields[:, 1:first].sum(1)
    folded[:, -1] += fields[:, last + 1 : -1].sum(1)
    return folded


BIAS = 127
"""The bias of fp32's exponent."""
_NARROWED = np.clip(np.arange(2048) - (1023 - BIAS), 1, 254).astype(np.uint8)
"""fp32's biased exponent for each of fp64's. The first and last finite exponents stand for what lies beyond them."""
_NARROWED[[0, -1]] = 0, 255

_APART = 4096
"""Parts of this average size or more are counted one by one, which takes a tenth of the time for each element."""

_SQUARED_EXACTLY = (2.0**-40, 2.0**50)
"""If the largest magnitude is in this range, squares summed in fp32 neither overflow nor lose what matters."""

_ROW = 1024
"""The number of fp32 squares that are added up in fp32."""

Counted: TypeAlias = tuple[int, int, int, float, float]
"""For a part: zeros, elements off fp16's grid, NaN, the largest magnitude (NaN if any is), the sum of squares."""


class Scratch:
    """Memory for the passes over a block, reused because new memory costs more than a pass over old memory.

    The same memory exists as tensors and as arrays, because converting one to the other costs as much as a short pass.
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
    def of(cls, size: int, dtype: torch.dtype) -> Scratch:
        """Allocate memory for ``size`` elements of fp32 or fp64."""
        dtypes = torch.uint8, torch.float16, dtype, torch.bool
        # The device is explicit, because the user may have changed the default one.
        return cls(*(torch.empty(size, dtype=each, device="cpu") for each in dtypes))

    def first(self, size: int) -> Scratch:
        """Return a view of the part of this memory that ``size`` elements need."""
        return Scratch(*(each[:size] for each in self._memory))

    def fill(self, elements: torch.Tensor) -> None:
        """Compute the flags and exponents of elements. Their number must be this memory's size."""
        array = elements.numpy()
        # The pass that is cheapest in cache goes first, because the first pass waits for memory.
        self._set_flags(elements, array)
        self._set_fields(array)

    def _set_fields(self, elements: npt.NDArray[Any]) -> None:
        """Set each element's biased exponent of fp32: 0 for zeros and subnormals, and 255 for inf and NaN."""
        if elements.dtype == np.float64:
            exponents = elements.view(np.int64) >> 52
            exponents &= 0x7FF
            _NARROWED.take(exponents, out=self.fields_array, mode="clip")
        else:
            bits = elements.view(np.int32)
            # The cast to a byte drops the sign.
            np.right_shift(bits, 23, out=self.fields_array, casting="unsafe")

    def _set_flags(self, elements: torch.Tensor, array: npt.NDArray[Any]) -> None:
        """Flag the elements that fp16 would change: those that are not on its grid, and NaN."""
        self._rounded.copy_(self._half.copy_(elements))
        # numpy compares floats several times faster than torch does on one thread.
        np.not_equal(array, self._rounded_array, out=self.flags)


def count(
    elements: torch.Tensor, scratch: Scratch, lengths: list[int]
) -> tuple[list[Counted], Ints]:
    """Count each of n parts, given by their lengths. Also count their elements by biased exponent of fp32, [n, 256].

    ``scratch`` must be filled with the elements. The first exponent has zeros and subnormals, the last inf and NaN.
    """
    if len(elements) >= _APART * len(lengths):
        return _count_apart(elements, scratch, lengths)
    return _count_together(elements.numpy(), scratch, lengths)


def _count_apart(
    elements: torch.Tensor, scratch: Scratch, lengths: list[int]
) -> tuple[list[Counted], Ints]:
    counted, exponents = [], []
    array, stop = elements.numpy(), 0
    for part, fields in zip(elements.split(lengths), scratch.fields.split(lengths), strict=True):
        start, stop = stop, stop + len(part)
        exponents.append(torch.bincount(fields, minlength=256).numpy())
        counted.append(
            _count_one(part, array[start:stop], scratch.flags[start:stop], exponents[-1])
        )
    return counted, exponents[0][None] if len(exponents) == 1 else np.stack(exponents)


def _count_one(
    part: torch.Tensor, array: npt.NDArray[Any], flags: npt.NDArray[np.bool_], exponents: Ints
) -> Counted:
    zeros, off_grid, nan = int(exponents[0]), int(np.count_nonzero(flags)), 0
    # Subnormals share an exponent with zeros, and NaN with inf. fp16 changes both, so without changes there are none.
    if off_grid:
        zeros = zeros and int(np.count_nonzero(array == 0))
        nan = int(exponents[-1]) and int(np.count_nonzero(np.isnan(array)))
    highest, lowest = np.maximum.reduce(array), np.minimum.reduce(array)
    largest = float(max(highest, -lowest))  # if one is NaN, so is the other
    return zeros, off_grid, nan, largest, _sum_squares(part, array, largest)


def _sum_squares(part: torch.Tensor, array: npt.NDArray[Any], largest: float) -> float:
    if part.dtype != torch.float32 or not _SQUARED_EXACTLY[0] <= largest <= _SQUARED_EXACTLY[1]:
        part = part.double()
        return float(torch.dot(part, part))
    # Rounding errors of fp32 additions accumulate if elements are alike, so fp32 sums at most one row.
    whole = len(array) - len(array) % _ROW
    rows = array[:whole].reshape(-1, 1, _ROW)
    squares = np.matmul(rows, rows.transpose(0, 2, 1))
    return float(squares.sum(dtype=np.float64)) + float(np.dot(array[whole:], array[whole:]))


def _count_together(
    array: npt.NDArray[Any], scratch: Scratch, lengths: list[int]
) -> tuple[list[Counted], Ints]:
    """`_count_apart` for short parts: one call covers all of them, because calls cost more than elements."""
    starts = np.cumsum([0, *lengths[:-1]])

    def sums(values: npt.NDArray[Any], dtype: npt.DTypeLike) -> list[Any]:
        added: list[Any] = np.add.reduceat(values, starts, dtype=dtype).tolist()
        return added

    places = np.repeat(np.arange(0, 256 * len(lengths), 256), lengths)
    places += scratch.fields_array
    exponents = np.bincount(places, minlength=256 * len(lengths)).reshape(-1, 256)
    largest = np.maximum(
        np.maximum.reduceat(array, starts), -np.minimum.reduceat(array, starts)
    ).tolist()
    with np.errstate(over="ignore", invalid="ignore"):  # squares may be infinite or NaN
        squares = sums(np.square(array, dtype=np.float64), np.float64)
    zeros, nan = exponents[:, 0].tolist(), exponents[:, -1].tolist()
    if any(zeros):
        zeros = sums(array == 0, np.int64)
    if any(nan):
        nan = sums(np.isnan(array), np.int64)
    off_grid = sums(scratch.flags, np.int64)
    return list(zip(zeros, off_grid, nan, largest, squares, strict=True)), exponents


def run_squares(array: npt.NDArray[Any], scratch: Scratch, lengths: list[int]) -> Ints:
    """Return the sum of squares, over each part's runs of 16, of a run's zero, below-grid and subnormal counts.

    The shape is [parts, 3].
    """
    grid, normal = FP16.exponent_min_subnormal + BIAS, FP16.exponent_min_normal + BIAS
    fields, flags = scratch.fields_array, scratch.flags
    # `count` has read the flags before, so their memory is free.
    zero = run_counts(np.equal(array, 0, out=flags))
    lowest = run_counts(np.less(fields, grid, out=flags))
    subnormal = run_counts(np.less(fields, normal, out=flags)) - lowest
    counts = np.stack([zero, lowest - zero, subnormal])
    starts = np.cumsum([0, *lengths[:-1]]) // RUN
    return np.add.reduceat(counts * counts, starts, axis=1).T
