"""Tables on the device that assign elements to each program of a launch.

Chunks depend on sizes alone, and are kept. Addresses change when gradients move, so each call compares
them. No gradient is kept alive: only addresses are stored, and a call uses only those of its own gradients.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from ampmon.probe.accelerator import stream_id
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
    """The work of a launch's programs, on the device. A chunk is three numbers: row, first element, and length."""

    pointers: torch.Tensor
    """int64 [n]: addresses of the tensors' first elements."""
    chunks: torch.Tensor
    """int64 [grid, 3]."""
    grid: int
    """The number of chunks, each for one program."""
    distinct: bool
    """Whether no two tensors share memory, so that each element is writable."""
    addresses: list[int]
    """What ``pointers`` holds, on the host."""


class Tables:
    """Tables for lists of gradients, each list of one device and dtype. Keeps those of the 16 lists used last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], Table] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that tables hold: 24 for each 4096 elements or more, and up to 32 for each tensor."""
        return sum(each.pointers.nbytes + each.chunks.nbytes for each in self._kept.values())

    def of(self, gradients: Sequence[torch.Tensor]) -> Table:
        """Return the table of n tensors without gaps, of one device and dtype. Enqueues copies there; does not wait."""
        first = gradients[0]
        addresses = [gradient.data_ptr() for gradient in gradients]
        numels = [gradient.numel() for gradient in gradients]
        # The first stream to request a table writes it. Another stream could read it before that.
        key = (first.device, first.dtype, stream_id(first.device), *numels)
        table = self._kept.get(key)
        if table is None or addresses != table.addresses:
            chunks = _chunks(numels, first.device) if table is None else table.chunks
            # A new tensor each time, because the device may still have to read the old one.
            pointers = torch.tensor(addresses, dtype=torch.int64, device="cpu")
            size = first.itemsize
            distinct = apart(addresses, [numel * size for numel in numels])
            table = self._kept[key] = Table(
                upload(pointers, first.device), chunks, len(chunks), distinct, addresses
            )
            if len(self._kept) > _TABLES_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return table


def _chunks(sizes: list[int], device: torch.device) -> torch.Tensor:
    """Return the chunks of tensors of these sizes, int64 [grid, 3], on the device."""
    numels = np.array(sizes, np.int64)
    size = chunk_size(int(numels.sum()))
    counts = -(-numels // size)
    grid = int(counts.sum())
    # By numpy: a loop in Python took 96 ms for 214 000 chunks, and this takes 1.3 ms.
    table = np.empty((grid, 3), np.int64)
    row, start, length = table.T
    row[:] = np.repeat(np.arange(len(numels)), counts)
    start[:] = (np.arange(grid) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    length[:] = np.minimum(np.repeat(numels, counts) - start, size)
    return upload(torch.from_numpy(table), device)


def chunk_size(total: int) -> int:
    """Return the elements in a chunk, a power of two, for ``total`` elements in all."""
    wanted = 1 << max(total // CHUNKS_WANTED, 1).bit_length()
    return min(max(wanted, CHUNK_MIN), CHUNK_MAX)


def apart(addresses: Sequence[int], spans: Sequence[int]) -> bool:
    """Return whether no two of the tensors at these addresses, which span this many bytes, overlap."""
    ordered = sorted((start, span) for start, span in zip(addresses, spans, strict=True) if span)
    return all(start + span <= after for (start, span), (after, _) in pairwise(ordered))
