"""Sampled gradients as bytes: what each parameter had, in columns. Pure.

A block holds consecutive samples of the same parameters, a column for each statistic: in the narrowest integers that
hold it, bins outermost, and byte plane by byte plane, so that empty bins and high bytes compress to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from ampmon.histogram import BINS, SMALL, Statistics, no_runs


_COUNTS = ("looked", "zeros", "on_grid", "inf", "nan", "histogram", "run_squares")
_FLOATS = ("amax", "sum_squares")
_WIDE = {"histogram": (BINS,), "run_squares": (SMALL,)}

VERSION = b"\x01"
"""Stands before what is packed. A migration packs again what an older version packed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The gradients of one sampled update, and what else there is of each parameter or module, int64 or float64 [n]."""

    step: int
    time: int
    scale: float
    statistics: Statistics
    beside: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class _Column(NamedTuple):
    dtype: str
    data: bytes


class _Block(msgspec.Struct, array_like=True):
    steps: bytes
    times: bytes
    scales: bytes
    parameters: bytes
    columns: dict[str, _Column]


_block_decoder = msgspec.msgpack.Decoder(_Block)


def compress(data: bytes) -> bytes:
    # Higher levels save one part in a hundred here, and take several times as long.
    return zstandard.ZstdCompressor(level=1).compress(data)


def decompress(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


def unversioned(data: bytes) -> bytes:
    """What stands behind the version. Raises ValueError for another than this one's."""
    if data[:1] != VERSION:
        raise ValueError(f"packed as version {data[:1].hex()}: this is {VERSION.hex()}")
    return data[1:]


@dataclass(frozen=True, slots=True)
class Stack:
    """m samples of the same n parameters: arrays [m], and of statistics [m, n], of histograms [m, n, 64]."""

    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    scales: npt.NDArray[np.float64]
    parameters: npt.NDArray[np.int32]
    statistics: dict[str, npt.NDArray[Any]]
    beside: dict[str, npt.NDArray[Any]]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Stack:
        return cls(
            np.array([sample.step for sample in samples], np.int64),
            np.array([sample.time for sample in samples], np.int64),
            np.array([sample.scale for sample in samples], np.float64),
            samples[0].statistics.parameters,
            {
                name: np.stack([getattr(sample.statistics, name) for sample in samples])
                for name in (*_COUNTS, *_FLOATS)
            },
            {
                name: np.stack([sample.beside[name] for sample in samples])
                for name in samples[0].beside
            },
        )


def runs_of_alike(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    """Consecutive samples that looked at the same parameters: each stretch makes a block."""
    stretches: list[Sequence[Sample]] = []
    first = 0
    for index in range(1, len(samples) + 1):
        if index == len(samples) or not _alike(samples[first], samples[index]):
            stretches.append(samples[first:index])
            first = index
    return stretches


def _alike(one: Sample, other: Sample) -> bool:
    return np.array_equal(one.statistics.parameters, other.statistics.parameters)


def block_to_bytes(stack: Stack) -> bytes:
    """Samples that are alike, as one block."""
    columns = {}
    for name, values in {**stack.statistics, **stack.beside}.items():
        narrow = values
        if values.dtype.kind == "i":
            narrow = values.astype(np.min_scalar_type(values.max(initial=0)))
        columns[name] = _Column(narrow.dtype.str, _to_planes(np.ascontiguousarray(narrow.T)))
    block = _Block(
        steps=stack.steps.astype("<i8").tobytes(),
        times=stack.times.astype("<i8").tobytes(),
        scales=stack.scales.astype("<f8").tobytes(),
        parameters=stack.parameters.astype("<i4").tobytes(),
        columns=columns,
    )
    return VERSION + compress(msgspec.msgpack.encode(block))


def _to_planes(array: npt.NDArray[Any]) -> bytes:
    return array.reshape(-1, 1).view(np.uint8).T.tobytes()


def _from_planes(column: _Column) -> npt.NDArray[Any]:
    dtype = np.dtype(column.dtype)
    planes = np.frombuffer(column.data, np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(dtype)


def block_from_bytes(data: bytes) -> list[Sample]:
    """The samples of a block; statistics that it does not have are taken for not known."""
    block = _block_decoder.decode(decompress(unversioned(data)))
    steps, times = np.frombuffer(block.steps, "<i8"), np.frombuffer(block.times, "<i8")
    scales = np.frombuffer(block.scales, "<f8")
    parameters = np.frombuffer(block.parameters, "<i4")
    columns = {
        name: _unpack(name, column, len(parameters), len(steps))
        for name, column in block.columns.items()
    }
    known: dict[str, Any] = {
        name: columns.pop(name) for name in (*_COUNTS, *_FLOATS) if name in columns
    }
    known.setdefault("run_squares", [no_runs(len(parameters))] * len(steps))
    return [
        Sample(
            int(steps[index]),
            int(times[index]),
            float(scales[index]),
            Statistics(
                parameters=parameters,
                **{name: column[index] for name, column in known.items()},
            ),
            {name: column[index] for name, column in columns.items()},
        )
        for index in range(len(steps))
    ]


def _unpack(name: str, column: _Column, parameters: int, samples: int) -> npt.NDArray[Any]:
    array = _from_planes(column)
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    return array.reshape((*_WIDE.get(name, ()), parameters, samples)).T
