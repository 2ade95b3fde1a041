"""Which elements each program of a launch reads, as tables on the device. Knows nothing of what is done with them.

Chunks depend on shapes and strides alone, and are kept; addresses change when gradients move, and are compared on each
call. No gradient is kept alive: what is remembered is where one was, and a call uses no address that it was not given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from ampmon.probe.accelerator import stream_id
from ampmon.probe.ring import upload


CHUNK_MIN = 1 << 12
CHUNK_MAX = 1 << 15
"""Elements that one program reads. With more, a large card is half empty while the last ones end; with fewer, what a
program does once (some hundred instructions, up to 71 atomic operations) shows beside what it does for each element."""
CHUNKS_WANTED = 1 << 11
"""So that the largest cards, on which some 500 programs run at once, have a few rounds of them."""
_TABLES_KEPT = 16

Extents: TypeAlias = list[tuple[int, int]]
"""(size, stride) of each dimension in elements, innermost first; none for elements that lie without gaps."""


class Unsupported(Exception):
    """Gradients that the kernels do not take: torch's own operators do, or say why not."""


class Table(NamedTuple):
    """Where programs find their work, on the device.

    A chunk is four numbers: its row, its first element, how many it has, and the place, in the same table, of its
    tensor's layout: the number of dimensions, and a size and a stride for each, innermost first; 0 without gaps.
    """

    pointers: torch.Tensor
    """int64 [n]: addresses of the tensors' first elements."""
    chunks: torch.Tensor
    """int64 [4 * grid + ...]: the chunks, and behind them the layouts."""
    grid: int
    """How many chunks there are, each for one program."""
    gaps: bool
    """Whether any tensor has gaps. Where none has, no layout is ever read."""
    distinct: bool
    """Whether surely no element is reached in two ways, through one tensor or two, so that each may be written."""


class _Kept:
    """The tables of one list of shapes on one stream."""

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
        """The same shapes are elsewhere. A new tensor each time: the device may yet have to read the one before."""
        self.addresses = addresses
        pointers = _upload(addresses, device)
        self.table = self.table._replace(pointers=pointers, distinct=self._distinct())

    def _distinct(self) -> bool:
        return self.spans is not None and apart(self.addresses, self.spans)


class Tables:
    """Tables for lists of gradients, each list of one device and dtype. The 16 lists used last are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that tables hold: 32 for each 4096 elements or more, and up to 40 for each tensor."""
        tables = [kept.table for kept in self._kept.values()]
        return sum(table.pointers.nbytes + table.chunks.nbytes for table in tables)

    def of(self, gradients: Sequence[torch.Tensor]) -> Table:
        """The tables of n plain tensors of one device and dtype. Enqueues copies to the device, and waits for none."""
        first = gradients[0]
        addresses = [gradient.data_ptr() for gradient in gradients]
        # A table is written by the stream that asks for it first; another could read it before that.
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
    """All that chunks depend on. Sizes alone where nothing has gaps: they cost the least to ask for."""
    if all(map(torch.Tensor.is_contiguous, gradients)):
        return tuple(map(torch.Tensor.numel, gradients))
    return tuple((gradient.shape, gradient.stride()) for gradient in gradients)


def _chunks(gradients: Sequence[torch.Tensor]) -> tuple[npt.NDArray[np.int64], int, bool]:
    """The table of chunks with the layouts behind them, how many chunks there are, and whether any tensor has gaps."""
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
    table = np.empty(4 * grid + len(described), np.int64)
    table[4 * grid :] = described
    row, start, length, place = table[: 4 * grid].reshape(grid, 4).T
    row[:] = np.repeat(np.arange(len(numels)), counts)
    start[:] = (np.arange(grid) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    length[:] = np.minimum(np.repeat(numels, counts) - start, size)
    place[:] = np.repeat(np.array(places, np.int64), counts)
    return table, grid, any(layouts)


def chunk_size(total: int) -> int:
    """Elements in a chunk for so many in all: a power of two."""
    wanted = 1 << max(total // CHUNKS_WANTED, 1).bit_length()
    return min(max(wanted, CHUNK_MIN), CHUNK_MAX)


def extents(gradient: torch.Tensor) -> Extents:
    """The dimensions of a tensor that cannot be joined into others, innermost first; none if it has no gaps."""
    if gradient.is_contiguous():
        return []
    joined: Extents = []
    order = sorted(zip(gradient.stride(), gradient.shape, strict=True))
    for stride, size in order:
        if size == 1:
            continue
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return [] if len(joined) == 1 and joined[0][1] == 1 else joined


def spans(gradients: Sequence[torch.Tensor]) -> list[int] | None:
    """Bytes from each tensor's first element to the end of its last; None if elements of one may share memory.

    Only strides that each step over all that the smaller ones reach are sure not to.
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
    """Whether no two tensors that begin at these addresses and span so many bytes are interleaved."""
    ordered = sorted((start, span) for start, span in zip(addresses, spans, strict=True) if span)
    return all(start + span <= after for (start, span), (after, _) in pairwise(ordered))


def _upload(values: list[int], device: torch.device) -> torch.Tensor:
    return upload(torch.tensor(values, dtype=torch.int64, device="cpu"), device)
