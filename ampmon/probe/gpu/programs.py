"""The Triton kernels: each program reads a chunk once and adds its statistics to the row of the chunk's tensor.

Needs Triton and no torch, because a separate process compiles it. Works on rows and addresses, not on tensors.

On an H100 it takes 0.9 to 1.1 times as long as reading the bytes (benchmarks/results/, `make gpu`). The reasons:

- Loads are 16 bytes wide, and each thread issues 8 of them before the first use.
- Each thread keeps its own sums, which are joined once per chunk.
- Float additions replace integer additions that would be predicated.
- An exponent's last bits distinguish the bins.
- inf and NaN are counted behind a branch that few tiles take.
- A thread has at most 128 registers, so that 16 warps share a multiprocessor. So tiles are smaller if fp16 is unscaled.

Triton before 3.8 counts by ballots instead of increments in shared memory. That takes 1.5 times as long for fp32, and
2.4 to 2.6 times for fp16 and bf16. On most consumer cards the conversion to fp64, 2 a cycle, will be the limit.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from ampmon.numerics import packed


REGISTERS = 128
"""The most registers of a thread. fp32 needs no more."""
THREADS = tl.constexpr(128)
ELEMENTS = {
    "float64": tl.float64,
    "float32": tl.float32,
    "float16": tl.float16,
    "bfloat16": tl.bfloat16,
}
WIDTH = tl.constexpr(packed.WIDTH)
_AMAX = tl.constexpr(packed.AMAX)
_SQUARES = tl.constexpr(packed.SUM_SQUARES)
_BINS = tl.constexpr(packed.HISTOGRAM)
_SMALLEST = tl.constexpr(2.0**-40)
_LARGEST = tl.constexpr(2.0**23)
"""The lower bounds of the first and the last bin."""
_ROTATED = tl.constexpr((127 - 40) % 64)
"""The slot of bin 0: the exponent field of its elements modulo 64, the same for fp32 and fp64."""
_NAN = tl.constexpr(0x7FF8000000000000)


@triton.jit
def _pointer(address, DTYPE: tl.constexpr):
    """An address as a pointer to elements. Written out, because Triton 3.0 makes no pointer type from a parameter."""
    if DTYPE == tl.float64:
        return address.to(tl.pointer_type(tl.float64))
    elif DTYPE == tl.float32:
        return address.to(tl.pointer_type(tl.float32))
    elif DTYPE == tl.bfloat16:
        return address.to(tl.pointer_type(tl.bfloat16))
    else:
        return address.to(tl.pointer_type(tl.float16))


@triton.jit
def _chunk(
    pointers,
    chunks,
    DTYPE: tl.constexpr,
    ITEM: tl.constexpr,
    TILE: tl.constexpr,
):
    """This program's chunk: row, pointer to the tensor's element 0, first element, length, and the number of whole
    tiles that can be read 16 bytes at a time.

    That number is 0 if the address is no multiple of 16.
    """
    record = chunks + tl.program_id(0).to(tl.int64) * 3
    row = tl.load(record)
    start = tl.load(record + 1)
    length = tl.load(record + 2).to(tl.int32)
    address = tl.load(pointers + row)
    fast = (address + start * ITEM) % 16 == 0
    tiles = length // TILE * fast.to(tl.int32)
    return row, _pointer(address, DTYPE), start, length, tiles


@triton.jit
def _lanes(ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Numbers of a tile's elements [ROWS, COLUMNS]. A row is 16 bytes a thread, so sums over rows stay in a thread."""
    return tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _widened(x):
    """Half precision as fp32, which holds it exactly. A shift converts bf16, fp32's upper half, without a bf16 unit."""
    if x.dtype == tl.float64:
        return x
    elif x.dtype == tl.bfloat16:
        upper = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return upper.to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def _slots(wide):
    """The bin of each element, rotated by 23. Zero and NaN are in the first bin, inf is in the last."""
    # In this order a NaN becomes the smallest, because it loses against any number.
    clamped = tl.minimum(tl.maximum(tl.abs(wide), _SMALLEST), _LARGEST)
    # An exponent's last 6 bits distinguish 64 neighbours, and need no subtraction and no range check.
    if wide.dtype == tl.float64:
        return (clamped.to(tl.int64, bitcast=True) >> 52).to(tl.int32) & 63
    else:
        return (clamped.to(tl.int32, bitcast=True) >> 23) & 63


@triton.jit
def _add_special(wide, inf, nan):
    """Add the numbers of inf and NaN elements of a tile."""
    infinite = (tl.abs(wide) == float("inf")).to(tl.int32)
    unordered = (wide != wide).to(tl.int32)
    inf += tl.sum(tl.sum(infinite, axis=0), axis=0)
    nan += tl.sum(tl.sum(unordered, axis=0), axis=0)
    return inf, nan


@triton.jit
def _add_tile(x, slots, zeros, off_grid, peak, squares, inf, nan, TILE: tl.constexpr):
    """Add a tile to the sums, and return them with a flag: whether its squares summed to inf or NaN."""
    wide = _widened(x)
    slots += tl.histogram(tl.reshape(_slots(wide), (TILE,)), 64)
    zeros += tl.sum(tl.where(wide == 0.0, 1.0, 0.0), axis=0)
    # All fp16 numbers are on the grid but NaN, which `measure` adds once for the whole chunk.
    if x.dtype != tl.float16:
        rounded = wide.to(tl.float16).to(wide.dtype)
        off_grid += tl.sum(tl.where(wide != rounded, 1.0, 0.0), axis=0)
    # A maximum may lose a NaN. A sum never does.
    peak = tl.maximum(peak, tl.max(tl.abs(wide), axis=0))
    double = wide.to(tl.float64)
    total = tl.sum(double * double, axis=0)
    high = (total.to(tl.int64, bitcast=True) >> 32).to(tl.int32) & 0x7FF00000
    odd = tl.max((high == 0x7FF00000).to(tl.int32), axis=0) != 0
    if odd:
        inf, nan = _add_special(wide, inf, nan)
    return slots, zeros, off_grid, peak, squares + total, inf, nan, odd


@triton.jit
def _write_row(row, length, padding, slots, zeros, off_grid, peak, squares, inf, nan):
    """Add a chunk's sums to its row, with one atomic addition for each bin that has elements."""
    zeros = tl.sum(zeros, axis=0).to(tl.int32)
    off_grid = tl.sum(off_grid, axis=0).to(tl.int32)
    slot = tl.arange(0, 64)
    bin = (slot - _ROTATED) & 63
    slots -= tl.where(bin == 0, zeros + nan, tl.where(bin == 63, inf, 0))
    tl.atomic_add(row + _BINS + bin, slots.to(tl.int64), mask=slots != 0, sem="relaxed")
    counts = tl.where(slot == 0, length, tl.where(slot == 1, zeros - padding, length - off_grid))
    counts = tl.where(slot < 3, counts, tl.where(slot == 3, inf, nan))
    counted = (slot < _AMAX) & (counts != 0)
    tl.atomic_add(row + slot, counts.to(tl.int64), mask=counted, sem="relaxed")
    # The bits of non-negative values have the values' order, and those of NaN are the largest.
    peak = tl.max(peak, axis=0).to(tl.float64).to(tl.int64, bitcast=True)
    largest = tl.where(nan > 0, _NAN, peak)
    one = tl.arange(0, 1)
    tl.atomic_max(row + _AMAX + one, largest + tl.zeros((1,), tl.int64), sem="relaxed")
    sums = (row + _SQUARES).to(tl.pointer_type(tl.float64))
    tl.atomic_add(sums + one, tl.sum(squares, axis=0) + tl.zeros((1,), tl.float64), sem="relaxed")


@triton.jit
def _unscaled(x, inverse):
    """Torch's arithmetic: in fp32, rounded once to the gradient's dtype. A factor of 1 is not multiplied."""
    wide = x.to(tl.float32)
    return tl.where(inverse == 1.0, wide, wide * inverse).to(x.dtype)


@triton.jit(do_not_specialize=["pointers", "chunks", "into", "found_inf", "inv_scale"])
def measure(
    pointers,
    chunks,
    into,
    found_inf,
    inv_scale,
    DTYPE: tl.constexpr,
    UNSCALE: tl.constexpr,
):
    """Add a chunk's statistics to its row of ``into``, int64 [n, WIDTH]. With UNSCALE, unscale the chunk in place."""
    ITEM: tl.constexpr = 8 if DTYPE == tl.float64 else (4 if DTYPE == tl.float32 else 2)
    ROWS: tl.constexpr = 8 if ITEM == 4 else (2 if UNSCALE and ITEM == 2 else 4)
    COLUMNS: tl.constexpr = THREADS * (16 // ITEM)
    TILE: tl.constexpr = ROWS * COLUMNS
    row, base, start, length, tiles = _chunk(pointers, chunks, DTYPE, ITEM, TILE)
    lanes = _lanes(ROWS, COLUMNS)
    slots = tl.zeros((64,), tl.int32)
    zeros = tl.zeros((COLUMNS,), tl.float32)
    off_grid = tl.zeros((COLUMNS,), tl.float32)
    peak = _widened(tl.zeros((COLUMNS,), DTYPE))
    squares = tl.zeros((COLUMNS,), tl.float64)
    inf, nan = 0, 0
    inverse = tl.load(inv_scale) if UNSCALE else 1.0
    for tile in range(tiles):
        places = tl.multiple_of(base + start + tile * TILE + lanes, (ITEM, 16))
        x = tl.load(places)
        slots, zeros, off_grid, peak, squares, inf, nan, odd = _add_tile(
            x, slots, zeros, off_grid, peak, squares, inf, nan, TILE
        )
        if UNSCALE:
            if odd | (inverse != 1.0):
                tl.store(places, _unscaled(x, inverse))
    for first in range(tiles * TILE, length, TILE):
        inside = first + lanes < length
        # In this order, which AMD's compiler needs to keep registers free.
        places = base + start + (first + lanes)
        x = tl.load(places, mask=inside, other=0.0)
        slots, zeros, off_grid, peak, squares, inf, nan, odd = _add_tile(
            x, slots, zeros, off_grid, peak, squares, inf, nan, TILE
        )
        if UNSCALE:
            if odd | (inverse != 1.0):
                tl.store(places, _unscaled(x, inverse), mask=inside)
    padding = (TILE - length % TILE) % TILE
    if DTYPE == tl.float16:
        off_grid += tl.where(tl.arange(0, COLUMNS) == 0, nan, 0)
    _write_row(into + row * WIDTH, length, padding, slots, zeros, off_grid, peak, squares, inf, nan)
    if UNSCALE:
        if inf + nan > 0:
            tl.store(found_inf, 1.0)


@triton.jit(do_not_specialize=["pointers", "chunks", "into", "found_inf"])
def attribute(
    pointers,
    chunks,
    into,
    found_inf,
    DTYPE: tl.constexpr,
):
    """Add a chunk's counts of inf and NaN to its row of ``into``, int64 [n, 2]. Do nothing if found_inf is zero."""
    ITEM: tl.constexpr = 8 if DTYPE == tl.float64 else (4 if DTYPE == tl.float32 else 2)
    ROWS: tl.constexpr = 8 if ITEM == 4 else 4
    COLUMNS: tl.constexpr = THREADS * (16 // ITEM)
    TILE: tl.constexpr = ROWS * COLUMNS
    if tl.load(found_inf) != 0.0:
        row, base, start, length, tiles = _chunk(pointers, chunks, DTYPE, ITEM, TILE)
        lanes = _lanes(ROWS, COLUMNS)
        inf, nan = 0, 0
        for tile in range(tiles):
            x = tl.load(tl.multiple_of(base + start + tile * TILE + lanes, (ITEM, 16)))
            inf, nan = _add_special(_widened(x), inf, nan)
        for first in range(tiles * TILE, length, TILE):
            x = tl.load(base + start + (first + lanes), mask=first + lanes < length, other=0.0)
            inf, nan = _add_special(_widened(x), inf, nan)
        kind = tl.arange(0, 2)
        counts = tl.where(kind == 0, inf, nan)
        place = into + row * 2 + kind
        tl.atomic_add(place, counts.to(tl.int64), mask=counts != 0, sem="relaxed")


def variant(
    name: str, dtype: str, lanes: int, *, amd: bool, **flags: bool
) -> tuple[Any, dict[str, Any]]:
    """Return a kernel of this module for gradients of a torch dtype, and its options for a GPU.

    ``lanes`` are the threads of the GPU's warps.
    """
    options = {
        "DTYPE": ELEMENTS[dtype],
        "num_warps": THREADS.value // lanes,
        "num_stages": 1,
        "enable_fp_fusion": True,  # the default until Triton 3.9, which warns if it is left out
        **flags,
    }
    if not amd:  # whose compiler has no such option
        options["maxnreg"] = REGISTERS
    return globals()[name], options
