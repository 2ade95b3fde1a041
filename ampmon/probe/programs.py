"""What a program does on the device, in Triton: reads a chunk once and adds what it saw to its row.

Loaded when a kernel is first asked for, for it needs Triton. Knows rows and addresses, no tensors.

Cost, reasoned and counted in the machine code for sm_80 and sm_90, NOT measured on a card: an H100 or A100 reads 128 bytes
per multiprocessor in some 9 cycles (H200: 6), in which it issues 36 (24) warp instructions. The inner loop takes 12 for 32
fp32 elements, 14 where it also unscales, which doubles the bytes; 8 and 11 for fp16, of half the bytes. What was done for
that: 16-byte loads, 8 of them in flight in each thread; sums kept per thread and joined once a chunk; the exponent field
itself as the bin, so that nothing is clamped or compared per element; zeros read off the histogram; a float added instead
of a predicated integer; inf and NaN counted behind a branch that few tiles take. Two units may be busier than the issue
slots: fp64 conversion (16 a cycle on those cards, 2 on most consumer cards, where it will be the limit) and the
increments in shared memory. Triton before 3.7 has no such increments and counts by ballots, some four times the work.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


WARPS = 4
THREADS = tl.constexpr(32 * WARPS)
ELEMENTS = {
    torch.float64: tl.float64,
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}
WIDTH = tl.constexpr(71)
"""Columns of a packed row: looked, zeros, on_grid, inf, nan; amax and sum of squares as bits of fp64; 64 bins."""
_AMAX = tl.constexpr(5)
_SQUARES = tl.constexpr(6)
_BINS = tl.constexpr(7)
_LOWEST = tl.constexpr(127 - 40)
"""fp32's exponent field of bin 0."""
_LIFT = tl.constexpr(24)
"""fp32's subnormals times 2^24 are normal numbers: then field 0 holds zeros and nothing else."""
_NAN = tl.constexpr(0x7FF8000000000000)


@triton.jit
def _pointer(address, DTYPE: tl.constexpr):
    """An address as a pointer to elements. Spelt out, for Triton 3.0 makes no pointer type of a parameter."""
    if DTYPE == tl.float64:
        return address.to(tl.pointer_type(tl.float64))
    elif DTYPE == tl.float32:
        return address.to(tl.pointer_type(tl.float32))
    elif DTYPE == tl.bfloat16:
        return address.to(tl.pointer_type(tl.bfloat16))
    else:
        return address.to(tl.pointer_type(tl.float16))


@triton.jit
def _chunk(pointers, chunks, ITEM: tl.constexpr, TILE: tl.constexpr, GAPS: tl.constexpr):
    """This program's chunk: row, address of the tensor's element 0, first element, length; how many elements lie before a
    multiple of 16 bytes, how many whole tiles from there on; where to read of gaps. The rest is the edge.
    """
    record = chunks + tl.program_id(0).to(tl.int64) * 4
    row = tl.load(record)
    start = tl.load(record + 1)
    length = tl.load(record + 2).to(tl.int32)
    address = tl.load(pointers + row)
    head = (-((address + start * ITEM) // ITEM) & (16 // ITEM - 1)).to(tl.int32)
    head = tl.minimum(head, length)
    tiles = (length - head) // TILE
    layout = chunks
    if GAPS:
        layout += tl.load(record + 3)
        dense = (tl.load(layout) == 0).to(tl.int32)
        head *= dense
        tiles *= dense
    return row, address, start, length, head, tiles, layout


@triton.jit
def _offsets(place, layout, GAPS: tl.constexpr):
    """How far elements, numbered from the innermost dimension out, lie from the first one."""
    if GAPS:
        offset = place * 0
        dims = tl.load(layout).to(tl.int32)
        for dim in range(dims):
            size = tl.load(layout + 1 + 2 * dim)
            offset += place % size * tl.load(layout + 2 + 2 * dim)
            place = place // size
        # Of a tensor without gaps, which has no dimensions to tell apart, all is left; of others nothing.
        place += offset
    return place


@triton.jit
def _widened(x):
    """Half precision as fp32, which holds it exactly."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def _field(wide):
    """The exponent field of fp32, of values times 2^24; of fp64, the same of the nearest value that fp32 has.

    Zero gives 0 and nothing else does; inf and NaN give 255, beside what is finite and at least 2^104.
    """
    if wide.dtype == tl.float64:
        bits = wide.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
        lifted = (bits >> 52).to(tl.int32) + (127 + 24 - 1023)
        lifted = tl.minimum(tl.maximum(lifted, 1), 255)
        return tl.where(bits == 0, 0, lifted)
    else:
        lifted = wide * 16777216.0
        return ((lifted.to(tl.uint32, bitcast=True) >> 23) & 255).to(tl.int32)


@triton.jit
def _add_special(wide, inf, nan):
    """Add how many elements of a tile are inf, and how many NaN."""
    infinite = (tl.abs(wide) == float("inf")).to(tl.int32)
    unordered = (wide != wide).to(tl.int32)
    inf += tl.sum(tl.sum(infinite, axis=0), axis=0)
    nan += tl.sum(tl.sum(unordered, axis=0), axis=0)
    return inf, nan


@triton.jit
def _add_tile(x, fields, off_grid, peak, squares, inf, nan, TILE: tl.constexpr):
    """Add a tile to the sums, and say whether it held inf or NaN."""
    wide = _widened(x)
    fields += tl.histogram(tl.reshape(_field(wide), (TILE,)), 256)
    if x.dtype != tl.float16:
        rounded = wide.to(tl.float16).to(wide.dtype)
        off_grid += tl.sum(tl.where(wide != rounded, 1.0, 0.0), axis=0)
    # A NaN may be lost in a maximum, and is never lost in a sum.
    peak = tl.maximum(peak, tl.max(tl.abs(wide), axis=0))
    double = wide.to(tl.float64)
    total = tl.sum(double * double, axis=0)
    high = (total.to(tl.int64, bitcast=True) >> 32).to(tl.int32) & 0x7FF00000
    odd = tl.max((high == 0x7FF00000).to(tl.int32), axis=0) != 0
    if odd:
        inf, nan = _add_special(wide, inf, nan)
    return fields, off_grid, peak, squares + total, inf, nan, odd


@triton.jit
def _write_row(row, length, padding, fields, off_grid, peak, squares, inf, nan):
    """Add a chunk's sums to its row. One atomic addition for each bin that has elements."""
    field = tl.arange(0, 256)
    fields -= tl.where(field == 0, padding, 0)
    zeros = tl.sum(tl.where(field == 0, fields, 0), axis=0)
    fields -= tl.where(field == 255, inf + nan, 0)
    bin = tl.minimum(tl.maximum(field - (_LOWEST + _LIFT), 0), 63)
    counted = (field > 0) & (fields != 0)
    tl.atomic_add(row + _BINS + bin, fields.to(tl.int64), mask=counted, sem="relaxed")
    on_grid = length - off_grid
    counts = tl.where(field == 0, length, tl.where(field == 1, zeros, on_grid))
    counts = tl.where(field < 3, counts, tl.where(field == 3, inf, nan))
    counted = (field < 5) & (counts != 0)
    tl.atomic_add(row + field, counts.to(tl.int64), mask=counted, sem="relaxed")
    # Bits of values that are not negative are ordered as the values are, and NaN's are above all.
    largest = tl.where(nan > 0, _NAN, peak.to(tl.float64).to(tl.int64, bitcast=True))
    one = tl.arange(0, 1)
    tl.atomic_max(row + _AMAX + one, largest + tl.zeros((1,), tl.int64), sem="relaxed")
    sums = (row + _SQUARES).to(tl.pointer_type(tl.float64))
    tl.atomic_add(sums + one, squares + tl.zeros((1,), tl.float64), sem="relaxed")


@triton.jit
def _unscaled(x, inverse):
    """Torch's arithmetic: in fp32, rounded once to the gradient's dtype; a factor of 1 is no multiplication."""
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
    GAPS: tl.constexpr,
    UNSCALE: tl.constexpr,
):
    """Statistics of a chunk into its row of ``into``, int64 [n, 71]; with UNSCALE the chunk is then unscaled in place.

    A tile is [ROWS, COLUMNS], a row being 16 bytes for each thread: sums over rows then stay within a thread.
    """
    ITEM: tl.constexpr = 8 if DTYPE == tl.float64 else (4 if DTYPE == tl.float32 else 2)
    ROWS: tl.constexpr = 4 if ITEM == 2 else 8
    COLUMNS: tl.constexpr = THREADS * (16 // ITEM)
    TILE: tl.constexpr = ROWS * COLUMNS
    row, address, start, length, head, tiles, layout = _chunk(pointers, chunks, ITEM, TILE, GAPS)
    lanes = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    fields = tl.zeros((256,), tl.int32)
    off_grid = tl.zeros((COLUMNS,), tl.float32)
    peak = _widened(tl.zeros((COLUMNS,), DTYPE))
    squares = tl.zeros((COLUMNS,), tl.float64)
    inf, nan = 0, 0
    if UNSCALE:
        inverse = tl.load(inv_scale)
    inner = _pointer(address + (start + head) * ITEM, DTYPE)
    for tile in range(tiles):
        places = tl.multiple_of(inner + tile * TILE + lanes, (ITEM, 16))
        x = tl.load(places)
        fields, off_grid, peak, squares, inf, nan, odd = _add_tile(
            x, fields, off_grid, peak, squares, inf, nan, TILE
        )
        if UNSCALE:
            if odd | (inverse != 1.0):
                tl.store(places, _unscaled(x, inverse))
    edge = length - tiles * TILE
    padding = -edge
    base = _pointer(address, DTYPE)
    for first in range(0, edge, TILE):
        lane = first + lanes
        place = start + tl.where(lane < head, lane, lane + tiles * TILE)
        places = base + _offsets(place, layout, GAPS)
        x = tl.load(places, mask=lane < edge, other=0.0)
        fields, off_grid, peak, squares, inf, nan, odd = _add_tile(
            x, fields, off_grid, peak, squares, inf, nan, TILE
        )
        if UNSCALE:
            if odd | (inverse != 1.0):
                tl.store(places, _unscaled(x, inverse), mask=lane < edge)
        padding += TILE
    off = tl.sum(off_grid, axis=0).to(tl.int32)
    if DTYPE == tl.float16:
        off = nan
    largest, total = tl.max(peak, axis=0), tl.sum(squares, axis=0)
    _write_row(into + row * WIDTH, length, padding, fields, off, largest, total, inf, nan)
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
    GAPS: tl.constexpr,
):
    """Counts of inf and NaN of a chunk into its row of ``into``, int64 [n, 2]; nothing where found_inf is zero."""
    ITEM: tl.constexpr = 8 if DTYPE == tl.float64 else (4 if DTYPE == tl.float32 else 2)
    ROWS: tl.constexpr = 4 if ITEM == 2 else 8
    COLUMNS: tl.constexpr = THREADS * (16 // ITEM)
    TILE: tl.constexpr = ROWS * COLUMNS
    if tl.load(found_inf) != 0.0:
        row, address, start, length, head, tiles, layout = _chunk(
            pointers, chunks, ITEM, TILE, GAPS
        )
        lanes = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inf, nan = 0, 0
        inner = _pointer(address + (start + head) * ITEM, DTYPE)
        for tile in range(tiles):
            x = tl.load(tl.multiple_of(inner + tile * TILE + lanes, (ITEM, 16)))
            inf, nan = _add_special(_widened(x), inf, nan)
        edge = length - tiles * TILE
        base = _pointer(address, DTYPE)
        for first in range(0, edge, TILE):
            lane = first + lanes
            place = start + tl.where(lane < head, lane, lane + tiles * TILE)
            places = base + _offsets(place, layout, GAPS)
            x = tl.load(places, mask=lane < edge, other=0.0)
            inf, nan = _add_special(_widened(x), inf, nan)
        kind = tl.arange(0, 2)
        counts = tl.where(kind == 0, inf, nan)
        place = into + row * 2 + kind
        tl.atomic_add(place, counts.to(tl.int64), mask=counts != 0, sem="relaxed")
