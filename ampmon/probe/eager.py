"""Statistics of scaled gradients in plain torch: the reference for every faster way, on any device.

Every element is measured, into one packed tensor that is copied to the host without waiting for it. Nothing here keeps
a gradient alive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ampmon.histogram import BINS, EXPONENT_MIN, Statistics, no_runs
from ampmon.probe.sampling import flatten


_COUNTS = 5  # looked, zeros, on_grid, inf, nan
_AMAX, _SUM_SQUARES = _COUNTS, _COUNTS + 1
_WIDTH = _COUNTS + 2 + BINS

_BLOCK = 1 << 22
"""Elements measured together: bounds the temporaries, 8 bytes an element for the bin's index."""


def launch(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Statistics of every element of n gradients of one device, packed as int64 [n, 71] on that device.

    Only enqueues work: no value is read, so nothing waits, whatever the data. `unpack` reads the packed tensor once it
    is on the host.
    """
    return torch.stack([_launch_one(flatten(gradient)) for gradient in gradients])


def _launch_one(flat: torch.Tensor) -> torch.Tensor:
    rows = [_launch_block(block) for block in flat.split(_BLOCK)]
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


def _with_exponent(block: torch.Tensor) -> torch.Tensor:
    """Values in a dtype that has fp32's or fp64's exponent field: half precision widens exactly."""
    return block if block.dtype in (torch.float32, torch.float64) else block.float()


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
        run_squares=no_runs(len(counts)),
    )
