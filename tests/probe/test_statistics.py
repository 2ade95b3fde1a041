"""The probe's statistics of gradients, against float64 arithmetic and real casts to fp16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampmon.numerics.histogram import BINS, EXPONENT_MIN, Statistics, headroom_bits
from ampmon.probe import attribution, eager, host
from ampmon.probe.gpu.table import Tables
from ampmon.probe.gradients import sample_runs


Measure = Callable[[list[torch.Tensor]], Statistics]


def on_cpu(gradients: list[torch.Tensor]) -> Statistics:
    """Measure every element on the CPU's path."""
    return host.measure(gradients, range(len(gradients)), "all", np.random.default_rng(0))


def as_device(gradients: list[torch.Tensor]) -> Statistics:
    """Measure every element on the path for devices that must not be waited for, packed and unpacked."""
    return eager.unpack(eager.launch(gradients), range(len(gradients)))


def without_fp64(gradients: list[torch.Tensor]) -> Statistics:
    """Measure as on a device that cannot compute in fp64."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(eager, "widest", lambda _: torch.float32)
        with NoFp64():
            packed = eager.launch(gradients)
    return eager.unpack(packed, range(len(gradients)))


class NoFp64(TorchDispatchMode):
    """Raises a TypeError if an fp64 tensor is made, as MPS does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(each.dtype == torch.float64 for each in tree_leaves(made) if torch.is_tensor(each)):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return made


PATHS = [on_cpu, as_device]
SPECIAL = [
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    2.0**-24,
    2.0**-25,
    2.0**-14,
    65504.0,
    65520.0,
    1e-45,
    3e38,
    2.0**70,
    1.3 * 2.0**-72,
    2.0**127,
    2.0**-126,
    1e-300,
]
VALUES = st.one_of(
    st.sampled_from(SPECIAL),
    st.floats(width=32),
    st.builds(
        math.ldexp,
        st.floats(-2, 2),
        st.integers(-60, 30),
    ),
)


def reference(gradient: torch.Tensor) -> dict[str, object]:
    """Compute the same statistics, element by element in float64."""
    values = gradient.double().flatten().tolist()
    counted = [abs(value) for value in values if math.isfinite(value) and value != 0]
    histogram = [0] * BINS
    for magnitude in counted:
        exponent = math.frexp(magnitude)[1] - 1
        histogram[min(max(exponent - EXPONENT_MIN, 0), BINS - 1)] += 1
    on_grid = gradient.double().flatten() == gradient.half().double().flatten()
    return {
        "looked": len(values),
        "zeros": values.count(0.0),
        "inf": sum(map(math.isinf, values)),
        "nan": sum(map(math.isnan, values)),
        "on_grid": int(on_grid.sum()),
        "histogram": histogram,
        "amax": max(map(abs, values)) if not any(map(math.isnan, values)) else math.nan,
        "sum_squares": sum(value * value for value in values),
    }


def agree(statistics: Statistics, gradients: list[torch.Tensor], path: Measure) -> None:
    """Assert equal counts and amax, and sums of squares within 1e-12 on the device path, else within 1e-6."""
    precision = 1e-12 if path is as_device else 1e-6
    statistics.check()
    for row, gradient in enumerate(gradients):
        expected = reference(gradient)
        for name in ("looked", "zeros", "inf", "nan", "on_grid"):
            assert getattr(statistics, name)[row] == expected[name], (name, gradient)
        assert statistics.histogram[row].tolist() == expected["histogram"]
        assert statistics.amax[row] == pytest.approx(expected["amax"], rel=0, abs=0, nan_ok=True)
        assert statistics.sum_squares[row] == pytest.approx(
            expected["sum_squares"],
            rel=precision,
            abs=2.0**-252 if path is without_fp64 else 0,  # squares of subnormals
            nan_ok=True,
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@settings(max_examples=40)
@given(values=st.lists(VALUES, min_size=1, max_size=80))
def test_statistics_equal_the_reference(
    path: Measure, dtype: torch.dtype, values: list[float]
) -> None:
    """Any values in any dtype are classified, counted and summed as by float64 arithmetic."""
    gradient = torch.tensor(values, dtype=torch.float64).to(dtype)
    agree(path([gradient]), [gradient], path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@given(
    values=st.lists(st.lists(VALUES, min_size=1, max_size=9), min_size=1, max_size=3),
    size=st.sampled_from([1, 300, 5000]),
)
def test_devices_without_fp64_are_measured(
    dtype: torch.dtype, values: list[list[float]], size: int
) -> None:
    """Without fp64, counts and amax are still exact, and sums of squares are right to 1e-6."""
    gradients = [torch.tensor(row, dtype=torch.float64).to(dtype).repeat(size) for row in values]
    agree(without_fp64(gradients), gradients, without_fp64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@settings(max_examples=10)
@given(values=st.lists(VALUES, min_size=1, max_size=80))
def test_long_gradients_equal_the_reference(dtype: torch.dtype, values: list[float]) -> None:
    """On a CPU a gradient long enough for a pass of its own is counted and summed as exactly."""
    gradient = torch.tensor(values, dtype=torch.float64).to(dtype)
    gradient = gradient.repeat(host._APART // len(values) + 1)
    agree(on_cpu([gradient]), [gradient], on_cpu)


@pytest.mark.parametrize("value", [0.705078125, 0.5833433, 1.0])
def test_what_is_left_off_does_not_add_up(value: float) -> None:
    """Rounding errors of 100 000 equal elements do not accumulate in their sum of squares."""
    gradient = torch.full((131_072 + 17,), value)
    agree(on_cpu([gradient]), [gradient], on_cpu)


@settings(max_examples=25)
@given(
    made=st.lists(
        st.tuples(
            st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
            st.sampled_from([1, 2, 16, 31, 300, 5000]),
            st.lists(VALUES, min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_each_of_many_is_as_if_alone(
    made: list[tuple[torch.dtype, int, list[float]]],
) -> None:
    """Gradients of any dtypes and lengths, measured together on a CPU, have the same statistics as alone."""
    gradients = [
        torch.tensor(values, dtype=torch.float64).to(dtype).repeat(-(-size // len(values)))[:size]
        for dtype, size, values in made
    ]
    agree(on_cpu(gradients), gradients, on_cpu)


@settings(max_examples=15)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 255, 256, 257, 5000]), min_size=1, max_size=9),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    values=st.lists(VALUES, min_size=1, max_size=20),
)
def test_devices_measure_many_together(
    lengths: list[int], dtype: torch.dtype, values: list[float]
) -> None:
    """Gradients that share a block or span two blocks are distinguished."""
    everything = torch.tensor(values, dtype=torch.float64).to(dtype)
    everything = everything.repeat(sum(lengths) // len(values) + 1)[: sum(lengths)]
    gradients = [each for each in everything.split(lengths) if len(each)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(eager, "_BLOCK", 1024)
        if gradients:
            agree(as_device(gradients), gradients, as_device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("work", [eager.launch, attribution.flag])
def test_many_gradients_take_few_launches(work: Callable[..., Any], dtype: torch.dtype) -> None:
    """Without kernels, 148 gradients of 4 M elements in total take fewer than 50 launches."""
    gradients = [torch.empty(28_000, dtype=dtype, device="meta") for _ in range(148)]
    with Launches() as launches:
        work(gradients)
    assert 0 < launches.count < 50


class Launches(TorchDispatchMode):
    """Counts operators that work on elements, without views and allocations."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and "empty" not in func.name()
        return func(*args, **(kwargs or {}))


def test_another_default_device_changes_nothing() -> None:
    """With another default device, gradients on the CPU are still measured there, and tables made there."""
    gradient = torch.randn(40_000)
    expected = on_cpu([gradient])
    torch.set_default_device("meta")
    try:
        measured = on_cpu([gradient])
        sampled = host.measure([gradient], [0], 16_384, np.random.default_rng(0))
        table = Tables().of([gradient])
    finally:
        torch.set_default_device(None)
    assert measured.histogram.tolist() == expected.histogram.tolist()
    assert sampled.looked.tolist() == [16_384]
    assert table.pointers.tolist() == [gradient.data_ptr()]
    assert table.chunks.device.type == "cpu"


@pytest.mark.parametrize("path", PATHS)
def test_any_layout_is_read(path: Measure) -> None:
    """Transposed, channels-last, strided, expanded, scalar and offset tensors are measured by their elements."""
    torch.manual_seed(0)
    base = torch.randn(6, 8, 4, 4) * 1e-6
    gradients = [
        base,
        base.to(memory_format=torch.channels_last),
        base[:, ::2],
        torch.randn(7, 3).t(),
        torch.randn(5, 1).expand(5, 9),
        torch.tensor(3.0),
        torch.randn(100)[3:17],
    ]
    agree(path(gradients), gradients, path)


def test_more_than_one_block_adds_up() -> None:
    """A tensor larger than a block of either path is counted whole, including a NaN in its last block."""
    gradient = torch.randn(eager._BLOCK + host._BLOCK + 5) * 1e-5
    gradient[-1] = math.nan
    cpu, device = on_cpu([gradient]), as_device([gradient])
    assert cpu.looked[0] == device.looked[0] == gradient.numel()
    assert (cpu.histogram == device.histogram).all()
    assert math.isnan(cpu.amax[0])
    assert math.isnan(device.amax[0])


@pytest.mark.parametrize("path", PATHS)
def test_the_classes_are_those_of_a_real_cast(path: Measure) -> None:
    """Gradients that fp16 made are all on its grid, with the zeros and subnormals of the fp16 tensor itself."""
    torch.manual_seed(1)
    half = (torch.randn(50_000) * torch.exp(torch.randn(50_000) * 4) * 1e-5).half()
    statistics = path([half.float()])
    classes = statistics.classes()
    assert classes.zero[0] == int((half == 0).sum())
    assert classes.subnormal[0] == int(((half != 0) & (half.abs() < 2.0**-14)).sum())
    assert classes.below_grid[0] == 0
    assert statistics.on_grid[0] == half.numel()
    assert bool(statistics.grid_mask[0])


def test_gradients_made_in_fp32_are_off_the_grid() -> None:
    """A gradient made in fp32 is off fp16's grid, and its small elements are below it."""
    gradient = torch.full((1000,), 1.1 * 2.0**-26)
    statistics = on_cpu([gradient])
    assert not statistics.grid_mask[0]
    assert statistics.classes().below_grid[0] == 1000


def test_headroom_is_counted_in_bits() -> None:
    """65504 has no headroom, half of it has one bit, and a gradient of zeros has infinite headroom."""
    statistics = on_cpu([torch.tensor([65504.0]), torch.tensor([-32752.0]), torch.zeros(3)])
    assert headroom_bits(statistics.amax).tolist() == [0.0, 1.0, math.inf]


def test_the_wire_holds_what_was_measured() -> None:
    """Statistics pass through the wire unchanged, including infinite and NaN maxima."""
    measured = on_cpu([torch.randn(1000), torch.tensor([math.inf, 1.0]), torch.tensor([math.nan])])
    received = Statistics.from_wire(measured.to_wire())
    received.check()
    for name in Statistics.__slots__:
        np.testing.assert_array_equal(getattr(received, name), getattr(measured, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_runs_are_counted_apart(dtype: torch.dtype) -> None:
    """Run squares are the sums of each run's squared count of zeros, below-grid and subnormal elements."""
    torch.manual_seed(0)
    gradients = [(torch.randn(size) * 2.0**-20).to(dtype) for size in (5000, 40, 3001)]
    for gradient in gradients:
        gradient[::3] = 0.0
        gradient[::7] *= 2.0**-8
    measured = host.measure(gradients, range(3), 640, np.random.default_rng(5))
    drawing = np.random.default_rng(5)
    for row, gradient in enumerate(gradients):
        runs = sample_runs(gradient, 640, drawing)
        if len(runs) == gradient.numel():
            assert measured.run_squares[row].tolist() == [0, 0, 0]
            continue
        runs = runs.double().abs().view(-1, 16)
        grid, normal = 2.0**-24, 2.0**-14
        small = (runs == 0, (runs > 0) & (runs < grid), (runs >= grid) & (runs < normal))
        expected = [int((each.sum(1) ** 2).sum()) for each in small]
        assert measured.run_squares[row].tolist() == expected
        assert all(expected)


def test_gradients_are_left_alone() -> None:
    """Measuring changes no bit of a gradient, on either path, sampled or in full."""
    gradient = torch.randn(70_000)
    before = gradient.clone()
    on_cpu([gradient])
    as_device([gradient])
    host.measure([gradient], [0], 16_384, np.random.default_rng(0))
    assert torch.equal(gradient, before)
