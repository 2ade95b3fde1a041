"""The Triton kernels, on a GPU or, in a process of its own, under Triton's interpreter: see test_kernels.py."""

from __future__ import annotations

import gc
import math
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon.numerics.packed import WIDTH
from ampmon.probe import eager
from ampmon.probe.gpu import kernels
from ampmon.probe.gpu.table import CHUNK_MAX, Tables, Unsupported
from ampmon.probe.gradients import has_no_gaps


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda:0")
gpu_only = pytest.mark.skipif(INTERPRETED, reason="the interpreter has no stream to wait for")

BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
SPECIAL = [
    *(0.0, math.inf, math.nan, 1.0, 65504.0, 65520.0, 1e-45, 5e-324, 3e38, 1e300),
    *(math.ldexp(1, exponent) for exponent in (-149, -126, -41, -40, -25, -24, -15, -14, 23, 24)),
    *(math.ldexp(1.25, exponent) for exponent in (-130, -40, -25, -24, 15, 104, 127)),
]

examples = settings(
    max_examples=3 if INTERPRETED else 100,  # a tile takes the interpreter 40 ms
    deadline=None,
    # The first example initializes the GPU, which takes seconds.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(autouse=True)
def overflow_is_meant() -> Iterator[None]:
    """Silence numpy's warnings: the interpreter computes with numpy, and these overflows are intended."""
    with np.errstate(all="ignore"):
        yield


def patterns(dtype: torch.dtype) -> st.SearchStrategy[list[int]]:
    """Bit patterns of a dtype, including special values and NaN with any payload."""
    integer = BITS[dtype]
    special = torch.tensor([*SPECIAL, *(-value for value in SPECIAL)], dtype=torch.float64)
    info = torch.iinfo(integer)
    return st.lists(
        st.one_of(
            st.sampled_from(special.to(dtype).view(integer).tolist()),
            st.integers(info.min, info.max),
        ),
        min_size=1,
        max_size=60,
    )


def filled(shape: tuple[int, ...], dtype: torch.dtype, bits: list[int], rest: int) -> torch.Tensor:
    """Return a contiguous tensor of small values with these bit patterns scattered over it."""
    generator = torch.Generator().manual_seed(rest)
    numel = math.prod(shape)
    size = torch.exp2(torch.rand(numel, generator=generator, dtype=torch.float64) * 60 - 45)
    sign = torch.randint(0, 2, (numel,), generator=generator) * 2 - 1
    tensor = (size * sign).to(dtype)
    places = torch.randint(0, max(numel, 1), (len(bits),), generator=generator)[:numel]
    tensor[places] = torch.tensor(bits, dtype=BITS[dtype]).view(dtype)[: len(places)]
    return tensor.view(shape).to(DEVICE)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda base: base,
    "transposed": lambda base: base.transpose(0, -1),
    "every second column": lambda base: base[..., ::2],
    "every third row": lambda base: base[::3],
    "a window": lambda base: base[1:, ..., 1:-1],
    "misaligned": lambda base: base.flatten()[1:],
    "misaligned further": lambda base: base.flatten()[3:-2],
    "diagonal": lambda base: base.flatten(0, -2).diagonal(),
}
WHOLE = {
    each: LAYOUTS[each] for each in ("contiguous", "transposed", "misaligned", "misaligned further")
}
"""Without gaps."""
READ_ONLY = {"expanded": lambda base: base.unsqueeze(1).expand(-1, 3, *base.shape[1:])}
SHAPES = [(5, 7), (1, 9), (3, 4, 5), (2, 3, 4, 6), (40, 110), (9000, 1), (70, 80), (2, 0)]


@st.composite
def gradients(draw: st.DrawFn, dtype: torch.dtype, layouts: dict[str, Any]) -> list[torch.Tensor]:
    """Draw up to four tensors of a dtype, of any shape and layout, or up to two for the slow interpreter."""
    made = []
    for _ in range(draw(st.integers(1, 2 if INTERPRETED else 4))):
        shape = draw(st.sampled_from(SHAPES))
        layout = layouts[draw(st.sampled_from(sorted(layouts)))]
        base = filled(shape, dtype, draw(patterns(dtype)), draw(st.integers(0, 99)))
        made.append(layout(base))
    return made


def reference(gradient: torch.Tensor) -> dict[str, Any]:
    """Compute the statistics by float64 arithmetic in numpy."""
    values = gradient.cpu().double().numpy().ravel()
    finite = values[np.isfinite(values) & (values != 0)]
    exponents = np.frexp(finite)[1] - 1
    bins = np.clip(exponents - EXPONENT_MIN, 0, BINS - 1)
    quantum = np.exp2(np.maximum(np.floor(np.log2(np.abs(finite))), -14) - 10)
    held = (np.abs(finite) <= 65504) & (np.remainder(finite, quantum) == 0)
    return {
        "looked": values.size,
        "zeros": (values == 0).sum(),
        "inf": np.isinf(values).sum(),
        "nan": np.isnan(values).sum(),
        "on_grid": held.sum() + (values == 0).sum() + np.isinf(values).sum(),
        "histogram": np.bincount(bins, minlength=BINS),
        "amax": np.abs(values).max(initial=0.0),
        "sum_squares": (values * values).sum(),
    }


def check(packed: torch.Tensor, measured: list[torch.Tensor]) -> None:
    """Assert that counts and amax equal the reference's and the eager path's, and sums of squares to 1e-12."""
    statistics = eager.unpack(packed.cpu(), range(len(measured)))
    statistics.check()
    for row, gradient in enumerate(measured):
        expected = [reference(gradient)]
        if gradient.numel():
            other = eager.unpack(eager.launch([gradient]).cpu(), [0])
            expected.append({name: getattr(other, name)[0] for name in expected[0]})
        for values in expected:
            for name, value in values.items():
                actual = getattr(statistics, name)[row]
                tolerance = 1e-12 if name == "sum_squares" else 0
                np.testing.assert_allclose(actual, value, rtol=tolerance, err_msg=name)


def clones(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the same layouts over memory of their own, at the same distance from a multiple of 16 bytes."""
    copied = []
    for tensor in tensors:
        storage = tensor.untyped_storage().clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        strides, offset = tensor.stride(), tensor.storage_offset()
        copied.append(empty.set_(storage, offset, tensor.shape, strides))
    return copied


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    """Return all of each tensor's memory, including the gaps between its elements."""
    storages = [tensor.untyped_storage().cpu() for tensor in tensors]
    return [torch.empty(0, dtype=torch.uint8).set_(each).numpy().tobytes() for each in storages]


def canonical(tensors: list[torch.Tensor]) -> list[bytes]:
    """`bits` with one payload for every NaN, because payloads are not promised and differ between processors."""
    copied = clones(tensors)
    for tensor, copy in zip(tensors, copied, strict=True):
        elements = tensor.new_empty(0).set_(copy.untyped_storage())
        elements[elements.isnan()] = math.nan
    return bits(copied)


@pytest.mark.parametrize("dtype", list(BITS), ids=str)
@examples
@given(data=st.data())
def test_statistics_equal_the_reference(dtype: torch.dtype, data: st.DataObject) -> None:
    """Any values in any shape, layout and alignment are counted as by float64 arithmetic and the eager path."""
    measured = data.draw(gradients(dtype, {**LAYOUTS, **READ_ONLY}))
    before = bits(measured)
    check(kernels.Cache().statistics(measured), measured)
    assert bits(measured) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@examples
@given(data=st.data(), power=st.integers(-30, 10), factor=st.sampled_from([1.0, 1.0, 1.1]))
def test_unscaling_is_torchs_bit_for_bit(
    dtype: torch.dtype, data: st.DataObject, power: int, factor: float
) -> None:
    """Unscaling gives the gradients and found_inf of torch's operator; the statistics are those before it."""
    ours = data.draw(gradients(dtype, WHOLE))
    inv_scale = torch.tensor([math.ldexp(factor, power)], device=DEVICE)
    theirs, before = clones(ours), clones(ours)
    found, expected = torch.zeros(1, device=DEVICE), torch.zeros(1, device=DEVICE)

    packed = kernels.Cache().unscale(ours, found, inv_scale)
    torch._amp_foreach_non_finite_check_and_unscale_(theirs, expected, inv_scale)

    assert canonical(ours) == canonical(theirs)
    assert found.tolist() == expected.tolist()
    check(packed, before)


def test_payloads_of_nan_are_not_compared() -> None:
    """NaN with other payloads compares equal; other numbers, NaN elsewhere and zeros of the other sign do not."""
    quiet, other = (torch.tensor([0x3C00, nan, 0]).to(torch.int16) for nan in (0x7E00, 0x7FFF))
    ours, theirs = quiet.view(torch.float16), other.view(torch.float16)
    assert canonical([ours]) == canonical([theirs])
    for place, value in ((1, 1.0), (0, math.nan), (2, -0.0)):
        changed = theirs.clone()
        changed[place] = value
        assert canonical([ours]) != canonical([changed])


def test_found_inf_is_only_ever_set() -> None:
    """Finite gradients leave found_inf unchanged, because another group of gradients may have set it."""
    for before in (0.0, 1.0):
        found = torch.tensor([before], device=DEVICE)
        ones = [torch.ones(5, device=DEVICE)]
        kernels.Cache().unscale(ones, found, torch.tensor([0.5], device=DEVICE))
        assert found.item() == before
        assert ones[0].tolist() == [0.5] * 5


def test_many_chunks_of_many_tiles_add_up() -> None:
    """A misaligned tensor of several chunks, with inf and NaN at its ends, is counted whole."""
    base = torch.randn(2 * CHUNK_MAX + 5000) * 1e-6
    base[1], base[-1] = math.inf, math.nan
    measured = [base.to(DEVICE)[1:], torch.randn(3, device=DEVICE)]
    check(kernels.Cache().statistics(measured), measured)


@pytest.mark.parametrize("dtype", list(BITS), ids=str)
def test_culprits_are_counted_where_found_inf_says_so(dtype: torch.dtype) -> None:
    """Inf and NaN are counted per tensor if found_inf is set; otherwise all counts are 0. Each call has its own."""
    wide = torch.zeros(80, 120, dtype=dtype, device=DEVICE)
    wide[3, 4], wide[70, 6], wide[70, 7] = math.inf, math.nan, -math.inf
    found = torch.tensor([1.0], device=DEVICE)
    measured = [wide, wide.new_ones(7), wide[:, 1::2].contiguous(), wide.new_empty(0)]
    count = kernels.Cache().counter(measured)
    counts = [count(found * (call % 3)) for call in range(9)]
    nothing, something = [[0, 0]] * 4, [[2, 1], [0, 0], [1, 0], [0, 0]]
    assert [each.tolist() for each in counts] == 3 * [nothing, something, something]


def sparse_file(path: Path, numel: int) -> torch.Tensor:
    """Return fp16 zeros: on a GPU in its memory, else in a sparse file, which takes no memory until it is touched."""
    if not INTERPRETED:
        return torch.zeros(numel, dtype=torch.float16, device=DEVICE)
    with path.open("wb") as file:
        file.truncate(2 * numel)
    return torch.from_file(str(path), shared=True, size=numel, dtype=torch.float16)


def test_offsets_beyond_32_bits(tmp_path: Path) -> None:
    """Elements more than 2^31 places from the first are measured, through strides and in a flat tensor's end."""
    flat = sparse_file(tmp_path / "sparse", 2**31 + 3 * CHUNK_MAX + 5)
    flat[-1], flat[-CHUNK_MAX] = 3.0, math.inf
    strided = flat[2 * CHUNK_MAX :: 2**24]
    strided[-1] = -7.0
    check(kernels.Cache().statistics([strided]), [strided])

    table = Tables().of([flat])
    chunks = table.chunks[-3:].contiguous()
    into = torch.zeros(1, WIDTH, dtype=torch.int64, device=DEVICE)
    last = table._replace(chunks=chunks, grid=len(chunks))
    kernels._launch("measure", last, flat, into, None, None, UNSCALE=False)
    check(into, [flat[int(chunks[0, 1]) :]])
    assert chunks[0, 1] > 2**31


@pytest.mark.parametrize(
    ("gradient", "method"),
    [
        (torch.ones(3, 1).expand(3, 4), "unscale"),
        (torch.ones(9).as_strided((4, 4), (1, 1)), "unscale"),
        (torch.ones(3, 4)[:, ::2], "unscale"),
        (torch.ones(3, 4)[:, ::2], "counter"),
        (torch.ones(3, dtype=torch.bfloat16), "unscale"),
        (torch.ones(3, dtype=torch.float64), "unscale"),
        (torch.ones(3, dtype=torch.complex64), "unscale"),
        (torch.ones(3, dtype=torch.int32), "statistics"),
        (torch.ones(3, dtype=torch.complex64), "counter"),
    ],
    ids=str,
)
def test_what_is_not_taken_is_refused_untouched(gradient: torch.Tensor, method: str) -> None:
    """Gaps, overlapping elements and unsupported dtypes raise Unsupported before anything is written."""
    gradient = gradient.to(DEVICE) if method == "statistics" else gradient
    flags = [torch.ones(1, device=DEVICE), torch.full((1,), 0.5, device=DEVICE)]
    arguments = flags if method == "unscale" else ()
    with pytest.raises(Unsupported):
        getattr(kernels.Cache(), method)([gradient], *arguments)
    assert (gradient == 1).all()


def test_one_memory_given_twice_is_not_unscaled_twice() -> None:
    """Unscaling refuses two gradients that share some or all of their memory."""
    base = torch.ones(8, device=DEVICE)
    flags = torch.zeros(1, device=DEVICE), torch.full((1,), 0.5, device=DEVICE)
    for other in (base, base[:4]):
        with pytest.raises(Unsupported):
            kernels.Cache().unscale([base, other], *flags)
    assert (base == 1).all()


def test_tables_follow_the_gradients() -> None:
    """Tables are reused while gradients stay, get new pointers if they move, and are rebuilt for other sizes."""
    tables = Tables()
    first, moved = torch.zeros(2, 10, device=DEVICE)
    one = tables.of([first])
    assert tables.of([first]) is one

    other = tables.of([moved])
    assert other.chunks is one.chunks
    assert (one.pointers.item(), other.pointers.item()) == (first.data_ptr(), moved.data_ptr())

    assert tables.of([first[:9]]).chunks is not one.chunks


def test_moved_gradients_are_measured_where_they_are() -> None:
    """A cache with tables of other gradients of the same shapes measures the gradients that it is given."""
    cache = kernels.Cache()
    for value in (1.0, 2.0, 4.0):
        measured = [torch.full((6,), value, device=DEVICE), torch.ones(3, device=DEVICE)]
        check(cache.statistics(measured), measured)


def test_no_gradient_is_kept_alive() -> None:
    """A measured gradient is freed when its last owner drops it."""
    cache = kernels.Cache()
    gradient = torch.ones(10, device=DEVICE)
    storage = weakref.ref(gradient.untyped_storage())
    alive = weakref.ref(gradient)
    cache.statistics([gradient])
    del gradient
    gc.collect()
    assert alive() is None
    assert storage() is None


def test_tables_stay_small() -> None:
    """Tables take less than 1 % of the memory of gradients of 4000 elements on average, and their number is bounded."""
    tables = Tables()
    for numels in ([4000] * 50, [10] * 50 + [100_000] * 2, [1_000_000] * 2):
        tables = Tables()
        measured = [torch.empty(numel, dtype=torch.float16, device=DEVICE) for numel in numels]
        tables.of(measured)
        assert 0 < tables.nbytes < 0.01 * sum(tensor.nbytes for tensor in measured)

    for count in range(1, 60):
        tables.of([torch.empty(count, device=DEVICE)])
    few = tables.nbytes
    for count in range(60, 90):
        tables.of([torch.empty(count, device=DEVICE)])
    assert tables.nbytes == few


@examples
@given(data=st.data())
def test_a_tensor_without_gaps_fills_its_memory(data: st.DataObject) -> None:
    """A tensor has no gaps if its elements are at consecutive places in memory, each once."""
    layouts = {**LAYOUTS, **READ_ONLY}
    (tensor,) = data.draw(gradients(torch.float32, layouts).filter(lambda made: len(made) == 1))
    tensor = tensor.cpu()
    places = torch.arange(tensor.untyped_storage().nbytes() // 4)
    own = places.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    first = tensor.storage_offset()
    consecutive = list(range(first, first + tensor.numel()))
    assert has_no_gaps(tensor) == (sorted(own.flatten().tolist()) == consecutive)


@gpu_only
def test_nothing_waits_for_the_device() -> None:
    """No method synchronizes with the device, whether its tables are new, moved or reused."""
    cache = kernels.Cache()
    flags = torch.zeros(1, device=DEVICE), torch.full((1,), 0.5, device=DEVICE)
    groups = [[torch.ones(5000, device=DEVICE), torch.ones(7, device=DEVICE)[1:]] for _ in "ab"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for group in (*groups, groups[1]):
            cache.statistics(group)
            cache.unscale(group, *flags)
            cache.counter(group)(flags[0])
    finally:
        torch.cuda.set_sync_debug_mode("default")
