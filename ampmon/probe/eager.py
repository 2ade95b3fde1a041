"""Statistics of scaled gradients in plain torch: the reference for every faster way, on any device.

Every element is measured, into one packed tensor that is copied to the host without waiting for it. Nothing here keeps
a gradient alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from ampmon.numerics.histogram import BINS, EXPONENT_MIN, Statistics, no_runs
from ampmon.probe.ring import upload
from ampmon.probe.sampling import flatten


_COUNTS = 5  # looked, zeros, on_grid, inf, nan
_AMAX, _SUM_SQUARES = _COUNTS, _COUNTS + 1

_BLOCK = 1 << 22
"""Elements measured together, of one tensor or of many: bounds the temporaries, some 20 bytes an element."""
_CHUNK = 256
"""Elements of one tensor that are added up first. The last chunk of each tensor is filled with zeros."""


def launch(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Statistics of every element of n gradients of one device and dtype, packed as int64 [n, 71] on that device.

    Only enqueues work, some 30 operators for each 4 M elements: no value is read, so nothing waits. `unpack` reads the
    packed tensor once it is on the host. Sums of squares are of fp64; where a device has none, of fp32 blocks, with a
    relative error below 1e-6.
    """
    device, n = gradients[0].device, len(gradients)
    flat = [flatten(gradient) for gradient in gradients]
    numels = np.array([len(each) for each in flat], np.int64)
    chunks = -(-numels // _CHUNK)
    table = np.concatenate([np.repeat(np.arange(n), chunks), numels, chunks * _CHUNK - numels])
    owner, looked, padding = upload(torch.from_numpy(table), device).split(
        [len(table) - 2 * n, n, n]
    )
    blocks = [_launch_block(block) for block in _blocks(flat)]
    counts, amax, squares = (torch.cat(each) for each in zip(*blocks, strict=True))

    rows = counts.new_zeros(n, counts.shape[1], dtype=torch.int64).index_add_(
        0, owner, counts.long()
    )
    zeros, on_grid, inf, nan, histogram = rows.split([1, 1, 1, 1, BINS], 1)
    histogram[:, :1] -= zeros
    histogram[:, -1:] -= inf + nan
    padding = padding[:, None]
    largest = amax.new_zeros(n).scatter_reduce_(0, owner, amax, "amax")
    if squares.dtype == torch.float64:
        total = squares.new_zeros(n).index_add_(0, owner, squares).view(torch.int64)
    else:
        total = _added(squares, amax, largest, owner, int(chunks.max()))
    values = torch.stack([_bits(largest), total], 1)
    return torch.cat(
        [looked[:, None], zeros - padding, on_grid - padding, inf, nan, values, histogram], 1
    )


def _blocks(flat: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The elements of tensors side by side, in chunks [k, _CHUNK], at most _BLOCK elements together."""
    nothing = flat[0].new_zeros(_CHUNK)
    parts: list[torch.Tensor] = []
    length = 0
    for part in (part for each in flat for part in each.split(_BLOCK)):
        missing = -len(part) % _CHUNK
        if parts and length + len(part) + missing > _BLOCK:
            yield torch.cat(parts).view(-1, _CHUNK)
            parts, length = [], 0
        parts += [part, nothing[:missing]] if missing else [part]
        length += len(part) + missing
    yield (parts[0] if len(parts) == 1 else torch.cat(parts)).view(-1, _CHUNK)


def _launch_block(chunks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each of k chunks: counts, int64 [k, 4 + 64], the largest magnitude, and the sum of squares.

    Zeros are counted in the first bin too, inf and NaN in the last. Without fp64, squares are of the elements divided
    by the power of two at or below the largest magnitude.
    """
    wide = _with_exponent(chunks)
    magnitude = wide.abs()
    bits, shift, field, bias = (
        (torch.int64, 52, 2047, 1023)
        if wide.dtype == torch.float64
        else (torch.int32, 23, 255, 127)
    )
    # CUDA's abs leaves a NaN in fp64 its sign.
    exponent = (magnitude.view(bits) >> shift).bitwise_and_(field)
    bins = exponent.sub_(bias + EXPONENT_MIN).clamp_(0, BINS - 1).long()
    one = bins.new_ones(()).expand_as(bins)
    histogram = bins.new_zeros(len(bins), BINS).scatter_add_(1, bins, one)
    del bins, one
    flags = [magnitude == 0, wide == wide.half(), magnitude == math.inf, wide.isnan()]
    counts = torch.cat([torch.stack([flag.sum(1) for flag in flags], 1), histogram], 1)
    amax = magnitude.amax(1)
    if widest(wide.device) == torch.float64:
        squares = torch.linalg.vector_norm(wide, dim=1, dtype=torch.float64).square_()
    else:
        squares = (wide * _power_of_two(-_exponent(amax))[:, None]).square_().sum(1)
    return counts, amax, squares


@cache
def widest(device: torch.device) -> torch.dtype:
    """The dtype in which a device computes most precisely: MPS and some XPUs have no fp64."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def _exponent(values: torch.Tensor) -> torch.Tensor:
    """The exponents of fp32 values that are not negative, within -126 to 126."""
    return ((values.view(torch.int32) >> 23) - 127).clamp_(-126, 126)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return ((exponent + 127) << 23).view(torch.float32)


def _added(
    squares: torch.Tensor,
    amax: torch.Tensor,
    largest: torch.Tensor,
    owner: torch.Tensor,
    most: int,
) -> torch.Tensor:
    """The sums of chunks' squares by tensor, of ``most`` chunks each, as the bits of fp64, where there is none.

    As integers, which add up exactly: in the smallest unit, times the square of the largest, that holds the sum.
    """
    unit = 2.0 ** (most.bit_length() - 52)
    top = _exponent(largest)
    behind = (2 * (_exponent(amax) - top[owner])).clamp_(min=-126)
    units = (squares * _power_of_two(behind) / unit).round_().nan_to_num_(0.0, 0.0).long()
    total = torch.zeros_like(largest, dtype=torch.int64).index_add_(0, owner, units).float() * unit
    bits = torch.where(total == 0, 0, _bits(total) + (2 * top.long() << 52))
    return torch.where(torch.isfinite(largest), bits, _bits(largest))


def _bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of values that are not negative, as fp64, int64 [n]: by integers where there is no fp64."""
    if widest(values.device) == torch.float64:
        return values.double().view(torch.int64)
    small = values < 2.0**-126
    bits = torch.where(small, values * 2.0**64, values).view(torch.int32).long()
    field = bits >> 23
    field = torch.where(field == 255, 2047, field + 896 - 64 * small.long())
    return torch.where(values == 0, 0, field << 52 | (bits & 0x7FFFFF) << 29)


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
