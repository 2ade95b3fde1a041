"""Statistics of scaled gradients in plain torch: the reference for every faster way, on any device.

On a CPU a sample of each tensor is measured at once, into numpy. On other devices every element is, into one packed
tensor that is copied to the host without waiting for it. Nothing here keeps a gradient alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from ampmon.histogram import BINS, EXPONENT_MIN, Statistics
from ampmon.probe.sampling import flatten, sample_runs


_COUNTS = 5  # looked, zeros, on_grid, inf, nan
_AMAX, _SUM_SQUARES = _COUNTS, _COUNTS + 1
_WIDTH = _COUNTS + 2 + BINS

_BLOCK = 1 << 17
"""Elements measured together on a CPU: 512 kB of fp32, so that the passes after the first find them in cache."""
_DEVICE_BLOCK = 1 << 22
"""Elements measured together on a device: bounds the temporaries, 8 bytes an element for the bin's index."""


def measure(
    gradients: Sequence[torch.Tensor],
    indices: Sequence[int],
    sample: int | Literal["all"],
    generator: np.random.Generator,
) -> Statistics:
    """Statistics of n CPU gradients of any floating dtype and shape; ``indices`` are their places in the header.

    ``sample`` is the number of elements to look at in each, or "all". Costs some passes over what is looked at.
    """
    values = np.zeros((len(gradients), _WIDTH))
    counts = np.zeros((len(gradients), _WIDTH), np.int64)
    looked = (
        (row, flatten(gradient) if sample == "all" else sample_runs(gradient, sample, generator))
        for row, gradient in enumerate(gradients)
    )
    for rows, blocks in _gathered(looked):
        _measure_together(rows, blocks, counts, values)
    return _statistics(counts, values, indices)


def _gathered(
    tensors: Iterable[tuple[int, torch.Tensor]],
) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Tensors cut and put together into blocks, so that many small ones cost no more than a large one of their size.

    No block holds two parts of one tensor, nor values that need fp64 beside others.
    """
    rows: list[int] = []
    blocks: list[torch.Tensor] = []
    for row, tensor in tensors:
        for block in tensor.split(_BLOCK):
            wide = block.dtype == torch.float64
            if blocks and (
                sum(map(len, blocks)) + len(block) > _BLOCK
                or wide != (blocks[0].dtype == torch.float64)
            ):
                yield rows, blocks
                rows, blocks = [], []
            rows.append(row)
            blocks.append(block)
    if blocks:
        yield rows, blocks


def _measure_together(
    rows: list[int],
    blocks: list[torch.Tensor],
    counts: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
) -> None:
    """Add the statistics of each block to its row."""
    joined = torch.cat([_with_exponent(block) for block in blocks])
    lengths = np.array([len(block) for block in blocks])
    starts = np.cumsum(lengths) - lengths
    elements = joined.numpy()
    fields = _count_fields(elements, lengths)
    # Both special exponents are rare and cost a pass each to tell apart, so look only where there is something to see.
    zeros = _count(elements == 0, starts) if fields[:, 0].any() else fields[:, 0]
    nan = _count(np.isnan(elements), starts) if fields[:, -1].any() else fields[:, -1]
    on_grid = _count(elements == joined.half().to(joined.dtype).numpy(), starts)
    counts[rows, :_COUNTS] += np.stack([lengths, zeros, on_grid, fields[:, -1] - nan, nan], axis=1)
    counts[rows, -BINS:] += _fold(fields)
    counts[rows, -BINS] += fields[:, 0] - zeros
    # np.maximum keeps a NaN, as torch's own maximum does; Python's max would lose one by chance.
    largest = np.maximum(
        np.maximum.reduceat(elements, starts), -np.minimum.reduceat(elements, starts)
    )
    values[rows, _AMAX] = np.maximum(values[rows, _AMAX], largest)
    wide = elements.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values[rows, _SUM_SQUARES] += np.add.reduceat(wide * wide, starts)


def _count(mask: npt.NDArray[np.bool_], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of each block, given by where it starts, are set."""
    return np.add.reduceat(mask.view(np.int8), starts, dtype=np.int64)


def _count_fields(
    elements: npt.NDArray[Any], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Counts of each block's elements [blocks, 256 or 2048] by biased exponent.

    The first is of zeros and fp32- or fp64-subnormals, the last of inf and NaN.
    """
    if elements.dtype == np.float64:
        size, fields = 2048, (elements.view(np.int64) >> 52) & 0x7FF
    else:
        size, fields = 256, (elements.view(np.int32) >> 23).astype(np.uint8)  # which drops the sign
    offsets = np.repeat(np.arange(len(lengths)) * size, lengths)
    return np.bincount(offsets + fields, minlength=len(lengths) * size).reshape(-1, size)


def _with_exponent(block: torch.Tensor) -> torch.Tensor:
    """Values in a dtype that has fp32's or fp64's exponent field: half precision widens exactly."""
    return block if block.dtype in (torch.float32, torch.float64) else block.float()


def _fold(fields: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Counts by biased exponent [n, 256 or 2048], without the two special ones, as histograms with clamped ends."""
    bias = fields.shape[1] // 2 - 1
    first, last = EXPONENT_MIN + bias, EXPONENT_MIN + BINS - 1 + bias
    folded = fields[:, first : last + 1].copy()
    folded[:, 0] += fields[:, 1:first].sum(1)
    folded[:, -1] += fields[:, last + 1 : -1].sum(1)
    return folded


def _statistics(
    counts: npt.NDArray[np.int64], values: npt.NDArray[np.float64], indices: Sequence[int]
) -> Statistics:
    looked, zeros, on_grid, inf, nan = counts[:, :_COUNTS].T
    return Statistics(
        parameters=np.asarray(indices, np.int32),
        looked=looked,
        zeros=zeros,
        on_grid=on_grid,
        inf=inf,
        nan=nan,
        amax=values[:, _AMAX],
        sum_squares=values[:, _SUM_SQUARES],
        histogram=counts[:, -BINS:],
    )


def launch(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Statistics of every element of n gradients of one device, packed as int64 [n, 71] on that device.

    Only enqueues work: no value is read, so nothing waits, whatever the data. `unpack` reads the packed tensor once it
    is on the host.
    """
    return torch.stack([_launch_one(flatten(gradient)) for gradient in gradients])


def _launch_one(flat: torch.Tensor) -> torch.Tensor:
    rows = [_launch_block(block) for block in flat.split(_DEVICE_BLOCK)]
    if len(rows) == 1:
        return rows[0]
    stacked = torch.stack(rows)
    total = stacked.sum(0)
    total[_AMAX] = _as_bits(_as_values(stacked[:, _AMAX]).max())
    total[_SUM_SQUARES] = _as_bits(_as_values(stacked[:, _SUM_SQUARES]).sum())
    return total


def _launch_block(block: torch.Tensor) -> torch.Tensor:
    block = _with_exponent(block)
    magnitude = block.abs()
    zero, nan = magnitude == 0, torch.isnan(block)
    inf = torch.isinf(block)
    bias, top = (1023, 0x7FF) if block.dtype == torch.float64 else (127, 0xFF)
    shift, bits = (52, torch.int64) if block.dtype == torch.float64 else (23, torch.int32)
    field = ((block.view(bits) >> shift) & top).long()
    bins = (field - bias - EXPONENT_MIN).clamp_(0, BINS - 1)
    counted = (~zero) & (field != top)
    histogram = torch.zeros(BINS, dtype=torch.int64, device=block.device).scatter_add_(
        0, bins, counted.long()
    )
    wide = magnitude.double()
    on_grid = block == block.half().to(block.dtype)
    head = torch.stack(
        [
            torch.full_like(zero.sum(), block.numel()),
            *(flag.sum() for flag in (zero, on_grid, inf, nan)),
        ]
    )
    values = torch.stack([magnitude.max().double(), (wide * wide).sum()])
    return torch.cat([head, _as_bits(values), histogram])


def _as_bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int64)


def _as_values(bits: torch.Tensor) -> torch.Tensor:
    return bits.contiguous().view(torch.float64)


def unpack(packed: torch.Tensor, indices: Sequence[int]) -> Statistics:
    """The statistics that `launch` packed, from its int64 [n, 71] copy on the host."""
    counts = packed.numpy().copy()
    return _statistics(counts, counts.view(np.float64), indices)
