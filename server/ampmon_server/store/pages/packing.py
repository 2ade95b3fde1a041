"""Packs sampled gradients into bytes, one column for each statistic. Pure.

No packed bytes name their format: the number of the schema does, and a migration that changes a format repacks them.

A block holds consecutive samples of the same parameters. Each column uses the narrowest numbers that hold its values.
Values are ordered by parameter, bin and sample, and split into byte planes, so empty bins and high bytes compress to
almost nothing. The counts of a block are apart from what few charts read, and both from the histograms. So charts of
many samples read little. The extra column `subnormal` counts subnormal and smaller elements, so that they need no
histograms.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from ampmon.numerics import packed
from ampmon.numerics.histogram import BINS, SMALL, SUBNORMAL_BINS, Statistics
from ampmon.numerics.sampling_error import Ints
from ampmon_server.store.engine.errors import Damaged


T = TypeVar("T")

_HEADS = {"step": "<i8", "time": "<i8", "scale": "<f8"}
"""The columns with one number for each sample."""
_STATISTICS = (*packed.COUNTS, "histogram", "run_squares", "amax", "sum_squares")
_WIDE = {"histogram": (BINS,), "run_squares": (SMALL,)}

_SUBNORMAL = "subnormal"

_PEAKS = "peaks"
"""The bin of each parameter that is packed as zeros. It compresses worst, and follows from the other counts."""

Block: TypeAlias = tuple[bytes, bytes, bytes]
"""A packed block: its counts, its other columns without bins, and those with bins."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The gradients of one sampled update. ``beside`` has more columns by parameter or module, int64 or float64 [n]."""

    step: int
    time: int
    scale: float
    statistics: Statistics
    beside: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class _Column(NamedTuple):
    dtype: str
    data: bytes


class _Head(msgspec.Struct, array_like=True):
    """The samples of a block, and its counts."""

    steps: bytes
    times: bytes
    scales: bytes
    parameters: bytes
    columns: dict[str, _Column]


_head_decoder = msgspec.msgpack.Decoder(_Head)
_part_decoder = msgspec.msgpack.Decoder(dict[str, _Column])


class _Zstandard(threading.local):
    """One for each thread: they may not be shared, and to make one takes 9 us, longer than to use it for a page."""

    def __init__(self) -> None:
        # Higher levels save about 1 % here and take several times as long.
        self.compress = zstandard.ZstdCompressor(level=1, write_checksum=True).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstandard = _Zstandard()


def compress(data: bytes) -> bytes:
    """Compress with a checksum, so that damage is detected."""
    return _zstandard.compress(data)


def decompress(data: bytes) -> bytes:
    """Decompress what `compress` returned. Raises Damaged."""
    try:
        # Bytes after the frame are damage too, which no checksum covers.
        return _zstandard.decompress(data, allow_extra_data=False)
    # A damaged header may claim any size, and SQLite may return a text.
    except (zstandard.ZstdError, MemoryError, TypeError) as error:
        raise Damaged(f"packed data is damaged: {error}") from error


@dataclass(frozen=True, slots=True)
class Stack:
    """m samples of the same n parameters. `step`, `time` and `scale` are [m], the others [m, n] or [m, n, bins]."""

    parameters: npt.NDArray[np.int32]
    columns: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Stack:
        first = samples[0]
        columns = {
            name: np.array([getattr(each, name) for each in samples], kind)
            for name, kind in _HEADS.items()
        }
        for name in _STATISTICS:
            columns[name] = np.stack([getattr(each.statistics, name) for each in samples])
        for name in first.beside:
            columns[name] = np.stack([each.beside[name] for each in samples])
        return cls(first.statistics.parameters, columns)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def steps(self) -> Ints:
        return self.columns["step"]

    @classmethod
    def joined(cls, stacks: Sequence[Stack]) -> Stack:
        """Concatenate one or more stacks of the same parameters."""
        first = stacks[0]
        if len(stacks) == 1:
            return first
        columns = {
            name: np.concatenate([each.columns[name] for each in stacks]) for name in first.columns
        }
        return cls(first.parameters, columns)

    def take(self, rows: slice) -> Stack:
        return Stack(self.parameters, {name: each[rows] for name, each in self.columns.items()})

    def samples(self) -> list[Sample]:
        return [self._sample(row) for row in range(len(self))]

    def _sample(self, row: int) -> Sample:
        columns = {name: each[row] for name, each in self.columns.items()}
        step, time, scale = (columns.pop(name).item() for name in _HEADS)
        known = {name: columns.pop(name) for name in _STATISTICS}
        return Sample(step, time, scale, Statistics(self.parameters, **known), columns)


def regrouped(stacks: Sequence[Stack], most: int) -> list[Stack]:
    """Regroup samples in order of step: neighbours that are alike share a stack of at most ``most`` samples."""
    ordered = sorted(stacks, key=lambda stack: int(stack.steps[0]))
    if any(one.steps[-1] > other.steps[0] for one, other in pairwise(ordered)):
        single = [stack.take(slice(row, row + 1)) for stack in stacks for row in range(len(stack))]
        ordered = sorted(single, key=lambda stack: int(stack.steps[0]))
    alike = groupby(ordered, key=lambda stack: stack.parameters.tobytes())
    whole = [Stack.joined(list(group)) for _, group in alike]
    return [
        stack.take(slice(first, first + most))
        for stack in whole
        for first in range(0, len(stack), most)
    ]


def stacks(samples: Sequence[Sample]) -> list[Stack]:
    """Group samples, given in order of step, into stacks of neighbours with the same parameters."""
    alike = groupby(samples, key=lambda sample: sample.statistics.parameters.tobytes())
    return [Stack.of(list(group)) for _, group in alike]


def block_to_bytes(stack: Stack) -> Block:
    """Pack a stack as one block."""
    small = stack.columns["histogram"][..., :SUBNORMAL_BINS].sum(-1)
    peaks, others = _without_peaks(stack.columns)
    plain = {**stack.columns, "histogram": others}
    columns = {name: _packed(each) for name, each in plain.items() if name not in _HEADS}
    counts = {name: columns.pop(name) for name in packed.COUNTS} | {_SUBNORMAL: _packed(small)}
    bins = {name: columns.pop(name) for name in _WIDE} | {_PEAKS: _Column("|u1", peaks.tobytes())}
    steps, times, scales = (stack.columns[name].astype(kind) for name, kind in _HEADS.items())
    head = _Head(
        steps=steps.tobytes(),
        times=times.tobytes(),
        scales=scales.tobytes(),
        parameters=stack.parameters.astype("<i4").tobytes(),
        columns=counts,
    )
    return _encoded(head), _encoded(columns), _encoded(bins)


def _encoded(part: object) -> bytes:
    return compress(msgspec.msgpack.encode(part))


def _packed(values: npt.NDArray[Any]) -> _Column:
    narrow = _narrowed(values)
    by_sample_last = np.ascontiguousarray(np.moveaxis(narrow, 0, -1))
    planes = by_sample_last.reshape(-1, 1).view(np.uint8).T
    return _Column(narrow.dtype.str, planes.tobytes())


def _without_peaks(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], Ints]:
    """The fullest bin of each parameter, [n], and the histograms with zeros there, because the other counts tell it.

    No bins if the counts do not add up to the elements looked at.
    """
    others = _narrowed(columns["histogram"])  # a copy
    if _rest(columns).any():
        return np.zeros(0, np.uint8), others
    peaks = columns["histogram"].sum(0).argmax(-1).astype(np.uint8)
    others[:, np.arange(len(peaks)), peaks] = 0
    return peaks, others


def _rest(columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """How many of the elements looked at are not counted, [m, n]."""
    counted: Ints = columns["zeros"] + columns["inf"] + columns["nan"]
    # A third to a half faster than `sum`.
    in_bins = np.einsum("mnb->mn", columns["histogram"])
    return np.asarray(columns["looked"] - counted - in_bins)


def _narrowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values in the narrowest type that holds them, bit for bit."""
    if values.dtype.kind in "iu":
        # Only the largest value matters: counts are never negative.
        return values.astype(np.min_scalar_type(values.max(initial=0)))
    with np.errstate(over="ignore", invalid="ignore"):  # too large, or NaN
        single = values.astype(np.float32)
    return single if single.astype(np.float64).tobytes() == values.tobytes() else values


class PackedStack:
    """The samples of a block, or of its counts and ``others``. A column is unpacked when requested. Raises Damaged."""

    def __init__(self, counts: bytes, *others: bytes) -> None:
        head = _decoded(_head_decoder, counts)
        self.steps = np.frombuffer(head.steps, "<i8")
        self.times = np.frombuffer(head.times, "<i8")
        self.scales = np.frombuffer(head.scales, "<f8")
        self.parameters = np.frombuffer(head.parameters, "<i4")
        self._columns = head.columns
        for each in others:
            columns: dict[str, _Column] = _decoded(_part_decoder, each)
            self._columns |= columns

    def __len__(self) -> int:
        return len(self.steps)

    def column(self, name: str, kept: Ints | slice) -> npt.NDArray[Any]:
        """A statistic without bins, or `subnormal`, as int64 or float64 [m, kept], of the parameters ``kept``."""
        return self._unpacked(self._columns[name], kept=kept)

    def whole(self) -> Stack:
        """Unpack all columns of a whole block."""
        held = {**self._columns}
        del held[_SUBNORMAL]
        peaks = np.frombuffer(held.pop(_PEAKS).data, np.uint8)
        columns = dict(zip(_HEADS, (self.steps, self.times, self.scales), strict=True))
        for name, column in held.items():
            columns[name] = self._unpacked(column, _WIDE.get(name, ()))
        if len(peaks):
            columns["histogram"][:, np.arange(len(peaks)), peaks] += _rest(columns)
        return Stack(self.parameters, columns)

    def _unpacked(
        self, column: _Column, bins: tuple[int, ...] = (), kept: Ints | slice = slice(None)
    ) -> npt.NDArray[Any]:
        """A column as int64 or float64 [m, kept] or [m, kept, bins]."""
        dtype = np.dtype(column.dtype)
        shape = dtype.itemsize, len(self.parameters), *bins, len(self.steps)
        try:
            planes = np.frombuffer(column.data, np.uint8).reshape(shape)[:, kept]
        except ValueError as error:  # a column of another block
            raise Damaged(f"packed data is damaged: {error}") from error
        values = _floats(planes, dtype) if dtype.kind == "f" else _integers(planes)
        return values.transpose(-1, *range(values.ndim - 1))


def _floats(planes: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> npt.NDArray[np.float64]:
    words = planes.transpose(*range(1, planes.ndim), 0).copy().view(dtype)[..., 0]
    return words.astype(np.float64, copy=False)


def _integers(planes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = planes[0].astype(np.int64)
    for place, plane in enumerate(planes[1:], 1):
        if plane.any():
            values |= plane.astype(np.int64) << 8 * place
    return values


def stack_from_bytes(block: Sequence[bytes]) -> Stack:
    """Unpack a block into a stack. Raises Damaged."""
    return PackedStack(*block).whole()


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(decompress(data))
    except msgspec.DecodeError as error:
        raise Damaged(f"packed data is not a block: {error}") from error
