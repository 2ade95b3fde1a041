"""Statistics of scaled gradients in plain torch: the reference for every faster way, on any device.

On a CPU a sample of each tensor is measured at once, into numpy. On other devices every element is, into one packed
tensor that is copied to the host without waiting for it. Nothing here keeps a gradient alive.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

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
    generator: random.Random,
) -> Statistics:
    """Statistics of n CPU gradients of any floating dtype and shape; ``indices`` are their places in the header.

    ``sample`` is the number of elements to look at in each, or "all". Costs some passes over what is looked at.
    """
    table = np.zeros((len(gradients), _WIDTH))
    counts = np.zeros((len(gradients), _WIDTH), np.int64)
    for row, gradient in enumerate(gradients):
        looked = flatten(gradient) if sample == "all" else sample_runs(gradient, sample, generator)
        for block in looked.split(_BLOCK):
            _measure_block(block, counts[row], table[row])
    return _statistics(counts, table, indices)


def _measure_block(
    block: torch.Tensor, counts: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> None:
    block = _with_exponent(block)
    fields = torch.bincount(_exponent_field(block), minlength=_field_count(block)).numpy()
    looked = block.numel()
    # Both special exponents are rare and cost a pass each to tell apart, so look only where there is something to see.
    zeros = looked - int(torch.count_nonzero(block)) if fields[0] else 0
    nan = int(torch.isnan(block).sum()) if fields[-1] else 0
    counts[:_COUNTS] += (looked, zeros, _on_grid(block), int(fields[-1]) - nan, nan)
    counts[-BINS:] += _fold(fields)
    counts[-BINS] += int(fields[0]) - zeros
    low, high = torch.aminmax(block)
    # np.maximum keeps a NaN, as torch's own maximum does; Python's max would lose one by chance.
    values[_AMAX] = np.maximum(values[_AMAX], max(abs(float(low)), abs(float(high))))
    wide = block.double()
    values[_SUM_SQUARES] += float(torch.dot(wide, wide))


def _with_exponent(block: torch.Tensor) -> torch.Tensor:
    """Values in a dtype that has fp32's or fp64's exponent field: half precision widens exactly."""
    return block if block.dtype in (torch.float32, torch.float64) else block.float()


def _exponent_field(block: torch.Tensor) -> torch.Tensor:
    """The biased exponent of each element: 0 for zero and fp32-subnormals, the largest for inf and NaN."""
    if block.dtype == torch.float64:
        return (block.view(torch.int64) >> 52) & 0x7FF
    return (block.view(torch.int32) >> 23) & 0xFF


def _field_count(block: torch.Tensor) -> int:
    return 2048 if block.dtype == torch.float64 else 256


def _fold(fields: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Counts by biased exponent, without the two special ones, as the histogram's 64 bins with clamped ends."""
    bias = len(fields) // 2 - 1
    bins = np.clip(np.arange(1, len(fields) - 1) - bias - EXPONENT_MIN, 0, BINS - 1)
    folded = np.zeros(BINS, np.int64)
    np.add.at(folded, bins, fields[1:-1])
    return folded


def _on_grid(block: torch.Tensor) -> int:
    return int((block == block.half().to(block.dtype)).sum())


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
    field = _exponent_field(block).long()
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
