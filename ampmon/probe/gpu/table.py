"""Tables on the device that assign elements to each program of a launch.

Chunks depend on shapes and strides alone, and are kept. Addresses change when gradients move, so each call compares
them. No gradient is kept alive: only addresses are stored, and a call uses only those of its own gradients.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ampmon.probe.accelerator import stream_id
from ampmon.probe.gradients import extents
from ampmon.probe.ring import upload


CHUNK_MIN = 1 << 12
CHUNK_MAX = 1 << 15
"""The bounds of the elements that one program reads. With more, a large card is half empty while the last programs end.
With fewer, a program's fixed work (some hundred instructions, up to 71 atomic operations) matters beside its work for
each element."""
CHUNKS_WANTED = 1 << 11
"""Enough for a few rounds on the largest cards, which run about 500 programs at once."""
_TABLES_KEPT = 16


class Unsupported(Exception):
    """The kernels do not support these gradients. Torch's own operators do, or raise an error."""


class Table(NamedTuple):
    """The work of a launch's programs, on the device.

    A chunk is four numbers: its row, its first element, its number of elements, and the position of its tensor's layout
    in the same table. A layout is the number of dimensions, with a size and a stride for each, innermost first. It is 0
    for a tensor without gaps.
    """

    pointers: torch.Tensor
    """int64 [n]: addresses of the tensors' first elements."""
    chunks: torch.Tensor
    """int64 [4 * grid + ...]: the chunks, followed by the layouts."""
    grid: int
    """The number of chunks, each for one program."""
    gaps: bool
    """Whether any tensor has gaps. If none has, no layout is ever read."""
    distinct: bool
    """Whether it is certain that no two positions, in one tensor or two, share an element, so that each is writable."""


class _Kept:
    """The table for one list of shapes on one stream."""

    __slots__ = ("addresses", "spans", "table")

    def __init__(self, gradients: Sequence[torch.Tensor], addresses: list[int]) -> None:
        self.addresses = addresses
        self.spans = spans(gradients)
        chunks, grid, gaps = _chunks(gradients)
        device = gradients[0].device
        pointers = _upload(addresses, device)
        table = upload(torch.from_numpy(chunks), device)
        self.table = Table(pointers, table, grid, gaps, self._distinct())

    def move(self, addresses: list[int], device: torch.device) -> None:
        """Update the addresses. Makes a new tensor each time, because the device may still have to read the old one."""
        self.addresses = addresses
        pointers = _upload(addresses, device)
        self.table = self.table._replace(pointers=pointers, distinct=self._distinct())

    def _distinct(self) -> bool:
        return self.spans is not None and apart(self.addresses, self.spans)


class Tables:
    """Tables for lists of gradients, each list of one device and dtype. Keeps those of the 16 lists used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that tables hold: 32 for each 4096 elements or more, and up to 40 for each tensor."""
        tables = [kept.table for kept in self._kept.values()]
        return sum(table.pointers.nbytes + table.chunks.nbytes for table in tables)

    def of(self, gradients: Sequence[torch.Tensor]) -> Table:
        """Return the table of n plain tensors of one device and dtype. Enqueues copies to the device; does not wait."""
        first = gradients[0]
        addresses = [gradient.data_ptr() for gradient in gradients]
        # The first stream to request a table writes it. Another stream could read it before that.
        key = (first.device, first.dtype, stream_id(first.device), *_shapes(gradients))
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = _Kept(gradients, addresses)
            if len(self._kept) > _TABLES_KEPT:
                self._kept.popitem(last=False)
        elif addresses != kept.addresses:
            kept.move(addresses, first.device)
        self._kept.move_to_end(key)
        return kept.table


def _shapes(gradients: Sequence[torch.Tensor]) -> tuple[object, ...]:
    """Everything that chunks depend on. Without gaps that is only the sizes, which are the cheapest to read."""
    if all(map(torch.Tensor.is_contiguous, gradients)):
        return tuple(map(torch.Tensor.numel, gradients))
    return tuple((gradient.shape, gradient.stride()) for gradient in gradients)


def _chunks(gradients: Sequence[torch.Tensor]) -> tuple[npt.NDArray[np.int64], int, bool]:
    """Return the table of chunks and layouts, the number of chunks, and whether any tensor has gaps."""
    layouts = [extents(gradient) for gradient in gradients]
    numels = np.array([gradient.numel() for gradient in gradients], np.int64)
    size = chunk_size(int(numels.sum()))
    counts = -(-numels // size)
    grid = int(counts.sum())
    described: list[int] = []
    known: dict[tuple[tuple[int, int], ...], int] = {}
    places = []
    for layout in map(tuple, layouts):
        if layout not in known:
            known[layout] = 4 * grid + len(described)
            described += [len(layout), *(number for extent in layout for number in extent)]
        places.append(known[layout])
    # By numpy: a loop in Python took 96 ms for 214 000 chunks, and this takes 1.3 ms.
    table = np.empty(4 * grid + len(described), np.int64)
    table[4 * grid :] = described
    row, start, length, place = table[: 4 * grid].reshape(grid, 4).T
    row[:] = np.repeat(np.arange(len(numels)), counts)
    start[:] = (np.arange(grid) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    length[:] = np.minimum(np.repeat(numels, counts) - start, size)
    place[:] = np.repeat(np.array(places, np.int64), counts)
    return table, grid, any(layouts)


def chunk_size(total: int) -> int:
    """Return the elements in a chunk, a power of two, for ``total`` elements in all."""
    wanted = 1 << max(total // CHUNKS_WANTED, 1).bit_length()
    return min(max(wanted, CHUNK_MIN), CHUNK_MAX)


def spans(gradients: Sequence[torch.Tensor]) -> list[int] | None:
    """Return the bytes from each tensor's first element to the end of its last.

    Returns None if a tensor's elements may share memory. They certainly do not if each stride steps over everything
    that the smaller strides reach.
    """
    found = []
    for gradient in gradients:
        reach = 0
        for stride, size in sorted(zip(gradient.stride(), gradient.shape, strict=True)):
            if size > 1:
                if stride <= reach:
                    return None
                reach += (size - 1) * stride
        found.append((reach + 1) * gradient.element_size() if gradient.numel() else 0)
    return found


def apart(addresses: Sequence[int], spans: Sequence[int]) -> bool:
    """Return whether no two of the tensors at these addresses, which span this many bytes, overlap or interleave."""
    ordered = sorted((start, span) for start, span in zip(addresses, spans, strict=True) if span)
    return all(start + span <= after for (start, span), (after, _) in pairwise(ordered))


def _upload(values: list[int], device: torch.device) -> torch.Tensor:
    return upload(torch.tensor(values, dtype=torch.int64, device="cpu"), device)
