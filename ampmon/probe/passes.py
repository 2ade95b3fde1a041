"""Counts the elements of a block on a CPU, for each tensor part in it.

A block is fp32 or fp64 elements side by side. The caller provides the memory.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import RUN
from ampmon.numerics.sampling_error import run_counts


BIAS = 127
"""The bias of fp32's exponent."""
_BIAS_DOUBLE = 1023
_NARROWED = slice(_BIAS_DOUBLE - BIAS, _BIAS_DOUBLE - BIAS + 256)
"""The part of fp64's biased exponents that corresponds to fp32's."""

_APART = 4096
"""Parts of this average size or more are counted one by one, which takes a tenth of the time for each element."""

_SQUARED_EXACTLY = (2.0**-40, 2.0**50)
"""If the largest magnitude is in this range, squares summed in fp32 neither overflow nor lose what matters."""

_ROW = 1024
"""The number of fp32 squares that are added up in fp32."""

Ints: TypeAlias = npt.NDArray[np.int64]

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
        fields = torch.uint8 if dtype == torch.float32 else torch.int16
        dtypes = fields, torch.float16, dtype, torch.bool
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
        """Set each element's biased exponent: uint8, or int16 for fp64.

        It is 0 for zeros and subnormals, and the last one for inf and NaN.
        """
        if elements.dtype == np.float64:
            bits = elements.view(np.int64) >> 52
            np.bitwise_and(bits, 0x7FF, out=self.fields_array, casting="unsafe")
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
        exponents.append(_count_fields(fields))
        counted.append(
            _count_one(part, array[start:stop], scratch.flags[start:stop], exponents[-1])
        )
    return counted, exponents[0][None] if len(exponents) == 1 else np.stack(exponents)


def _count_fields(fields: torch.Tensor) -> Ints:
    """Count the elements by biased exponent of fp32, [256]."""
    if fields.dtype == torch.uint8:
        return torch.bincount(fields, minlength=256).numpy()
    return _narrowed(torch.bincount(fields, minlength=2048).numpy())


def _narrowed(exponents: Ints) -> Ints:
    """Convert counts by exponent of fp64 or fp32 to counts by exponent of fp32, [..., 256].

    The first and last finite exponents take what lies beyond them.
    """
    if exponents.shape[-1] == 256:
        return exponents
    counts = exponents[..., _NARROWED].copy()
    counts[..., 0], counts[..., -1] = exponents[..., 0], exponents[..., -1]
    counts[..., 1] = exponents[..., 1 : _NARROWED.start + 2].sum(-1)
    counts[..., -2] = exponents[..., _NARROWED.stop - 2 : -1].sum(-1)
    return counts


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

    size = 256 if array.dtype == np.float32 else 2048
    places = np.repeat(np.arange(0, size * len(lengths), size), lengths)
    places += scratch.fields_array
    exponents = np.bincount(places, minlength=size * len(lengths)).reshape(-1, size)
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
    return list(zip(zeros, off_grid, nan, largest, squares, strict=True)), _narrowed(exponents)


def run_squares(array: npt.NDArray[Any], scratch: Scratch, lengths: list[int]) -> Ints:
    """Return the sum of squares, over each part's runs of 16, of a run's zero, below-grid and subnormal counts.

    The shape is [parts, 3].
    """
    bias = BIAS if array.dtype == np.float32 else _BIAS_DOUBLE
    grid, normal = FP16.exponent_min_subnormal + bias, FP16.exponent_min_normal + bias
    fields, flags = scratch.fields_array, scratch.flags
    zero = run_counts(np.equal(array, 0, out=flags))
    lowest = run_counts(np.less(fields, grid, out=flags))
    subnormal = run_counts(np.less(fields, normal, out=flags)) - lowest
    counts = np.stack([zero, lowest - zero, subnormal])
    starts = np.cumsum([0, *lengths[:-1]]) // RUN
    return np.add.reduceat(counts * counts, starts, axis=1).T
