"""Statistics of scaled gradients in plain torch, on any device: the reference for every faster implementation.

Measures every element, into one packed tensor that is copied to the host without waiting. Keeps no gradient alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch

from ampmon.numerics.histogram import BINS, EXPONENT_MIN, Statistics, no_runs
from ampmon.numerics.packed import AMAX, COUNTS, HISTOGRAM, SUM_SQUARES
from ampmon.probe.gradients import flatten, widened
from ampmon.probe.pending import Pending
from ampmon.probe.ring import Readback, upload


_BLOCK = 1 << 22
"""Elements measured together, of one tensor or of many. Bounds the temporaries, about 20 bytes an element."""
_CHUNK = 256
"""Elements of one tensor that are added up first. Zeros fill the last chunk of each tensor."""


def launch(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return statistics of every element of n gradients of one device and dtype, packed as int64 [n, WIDTH] there.

    Only enqueues work, about 30 operators for each 4 M elements. Reads no value, so it does not wait. `unpack` reads
    the packed tensor once it is on the host. Sums of squares are fp64. On a device without fp64 they come from fp32
    blocks, with a relative error below 1e-6.
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
    """Yield the tensors' elements side by side, as chunks [k, _CHUNK] of at most _BLOCK elements together."""
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
    """Return for each of k chunks: counts, int64 [k, 4 + 64], the largest magnitude, and the sum of squares.

    The first bin also counts zeros, the last also inf and NaN. Without fp64, elements are divided by the power of two
    at or below the largest magnitude before they are squared.
    """
    wide = widened(chunks)
    magnitude = wide.abs()
    bits, shift, field, bias = (
        (torch.int64, 52, 2047, 1023)
        if wide.dtype == torch.float64
        else (torch.int32, 23, 255, 127)
    )
    # Mask the sign too: CUDA's abs keeps that of an fp64 NaN.
    exponent = (magnitude.view(bits) >> shift).bitwise_and_(field)
    bins = exponent.sub_(bias + EXPONENT_MIN).clamp_(0, BINS - 1).long()
    # `bincount` would wait for the device, because its result's length depends on the values.
    one = bins.new_ones(()).expand_as(bins)
    histogram = bins.new_zeros(len(bins), BINS).scatter_add_(1, bins, one)
    # The largest temporary, with 8 of about 20 bytes an element.
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
    """Return the most precise dtype of a device: fp64, or fp32 where there is none (MPS, some XPUs)."""
    try:
        torch.zeros((), dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


def _exponent(values: torch.Tensor) -> torch.Tensor:
    """The exponents of non-negative fp32 values, clamped to -126 to 126."""
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
    """Sum the chunks' squares by tensor on a device without fp64, and return the sums as fp64 bits, int64 [n].

    A tensor has at most ``most`` chunks. The sums are of integers, which add up exactly. Their unit is the smallest
    with which the sum still fits, relative to the square of the tensor's largest power of two.
    """
    # A chunk's 256 squares are below 4 each, so the sum is at most 2^62 units and fits int64.
    unit = 2.0 ** (most.bit_length() - 52)
    top = _exponent(largest)
    behind = (2 * (_exponent(amax) - top[owner])).clamp_(min=-126)
    # An integer holds no NaN or inf. Where the sum is not finite, the last line replaces it.
    units = (squares * _power_of_two(behind) / unit).round_().nan_to_num_(0.0, 0.0).long()
    total = torch.zeros_like(largest, dtype=torch.int64).index_add_(0, owner, units).float() * unit
    bits = torch.where(total == 0, 0, _bits(total) + (2 * top.long() << 52))
    return torch.where(torch.isfinite(largest), bits, _bits(largest))


def _bits(values: torch.Tensor) -> torch.Tensor:
    """The fp64 bits of non-negative values, int64 [n]. Uses integers if the device has no fp64."""
    if widest(values.device) == torch.float64:
        return values.double().view(torch.int64)
    # The exponent field of a subnormal number is 0, unless it is multiplied by 2^64.
    small = values < 2.0**-126
    bits = torch.where(small, values * 2.0**64, values).view(torch.int32).long()
    field = bits >> 23
    # 896 is the difference of the two biases, 1023 - 127.
    field = torch.where(field == 255, 2047, field + 896 - 64 * small.long())
    return torch.where(values == 0, 0, field << 52 | (bits & 0x7FFFFF) << 29)


def fetch(packed: torch.Tensor, indices: Sequence[int]) -> Pending[Statistics]:
    """Start to copy what `launch` packed to the host. Return the statistics, which wait for it. Does not wait."""
    copy = Readback(packed)
    return Pending(lambda: unpack(copy.result(), indices), copy)


def unpack(packed: torch.Tensor, indices: Sequence[int]) -> Statistics:
    """Return the statistics that `launch` packed, from a host copy of its int64 [n, WIDTH]."""
    counts = packed.numpy().copy()
    values = counts.view(np.float64)
    return Statistics(
        parameters=np.asarray(indices, np.int32),
        **dict(zip(COUNTS, counts[:, :AMAX].T, strict=True)),
        amax=values[:, AMAX],
        sum_squares=values[:, SUM_SQUARES],
        histogram=counts[:, HISTOGRAM:],
        run_squares=no_runs(len(counts)),
    )
