"""Shares that a shifted histogram predicts for other scales and formats, compared with computed gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ampmon.numerics.formats import BF16, E4M3, E5M2, FP16, FloatFormat
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon_server.analysis.flushed import Flushed, flushed_in
from ampmon_server.analysis.whatif import LEVELS, Gradient, best, curve, of_parameter, of_samples
from campaigns.policy.coverage import holds
from campaigns.policy.gradients import pairs, samples, sparse, trained, underflow_network
from campaigns.policy.tasks import TASKS


CURVE = {
    0: (1.761, 98.2, 1.45e-1),
    2: (0.471, 99.5, 3.66e-2),
    4: (0.100, 97.0, 9.56e-3),
    6: (0.0345, 52.5, 2.47e-3),
    8: (0.004, 14.5, 8.0e-4),
    10: (0.0, 3.5, 6.0e-4),
    13: (0.0, 0.456, 5.98e-4),
    16: (0.0, 0.061, 5.97e-4),
}
"""Percent zero, percent subnormal and relative gradient error by power of two, with torch 2.13 on a CPU."""


def test_the_table_of_underflow() -> None:
    """Zero and subnormal shares and the error of a real network's fp16 gradient match the table at each scale."""
    gradient, exact = underflow_network(), underflow_network(torch.float32)(1.0)
    for level, (zero, subnormal, error) in CURVE.items():
        found = gradient(2.0**level)
        small = (found != 0) & (found.abs() < 2.0**-14)
        assert 100 * float((found == 0).float().mean()) == pytest.approx(zero, abs=6e-4)
        assert 100 * float(small.float().mean()) == pytest.approx(subnormal, abs=0.06)
        off = float((found / 2.0**level - exact).norm() / exact.norm())
        assert off == pytest.approx(error, rel=0.01)
    assert torch.equal(found, found.half().float())


@pytest.mark.parametrize("to", [0, 2, 4, 6, 8])
def test_a_real_network_at_a_smaller_scale_is_within_the_bounds(to: int) -> None:
    """At scales below 2**10, the zero and subnormal shares of a real backward pass are within the predicted bounds."""
    gradient = underflow_network()
    there = samples(gradient, [to]).on_grid
    now = of_samples(samples(gradient, [10]))
    assert now is not None
    found, at = curve(now, None, FP16), LEVELS.index(to)
    zero, subnormal = there.zeros[0] / there.elements[0], there.shares()[0, 2]
    assert found.underflow_low[at] <= zero <= found.underflow_high[at]
    assert found.subnormal_low[at] <= subnormal <= found.subnormal_high[at]


def test_the_estimate_at_its_own_scale_is_what_was_seen() -> None:
    """At its own scale, the prediction has the sample's subnormal share and no underflow."""
    seen = samples(sparse(), [6])
    now = of_samples(seen)
    assert now is not None
    found, at = curve(now, None, FP16), LEVELS.index(6)
    assert found.subnormal_low[at] == pytest.approx(seen.on_grid.shares()[0, 2])
    assert found.underflow_low[at] == 0.0


def test_samples_at_other_scales_do_not_change_what_was_seen_at_the_newest() -> None:
    """After the scale grew, the subnormal and zero shares at the newest scale are those measured there."""
    gradient = underflow_network()
    alone, after = (of_samples(samples(gradient, levels)) for levels in ([10], [4, 5, 6, 8, 10]))
    assert alone is not None
    assert after is not None
    assert after.histogram.tolist() == alone.histogram.tolist()
    assert (after.level, after.zeros) == (10, alone.zeros)
    assert after.amax == pytest.approx(alone.amax, rel=0.01)


@pytest.mark.parametrize(
    ("into", "dtype"),
    [(BF16, torch.bfloat16), (E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)],
)
def test_other_formats_flush_what_a_cast_does(into, dtype: torch.dtype) -> None:
    """The predicted underflow in bf16 and fp8 contains what a cast to that format flushes."""
    values = sparse()(2.0**12)
    now = of_samples(samples(lambda scale: values, [12]))
    assert now is not None
    found = curve(now, None, into)
    for level in (4, 8, 12, 16):
        cast = (values * 2.0 ** (level - 12)).to(dtype).float()
        share = float(((cast == 0) & (values != 0)).float().mean())
        at = LEVELS.index(level)
        assert found.underflow_low[at] - 1e-6 <= share <= found.underflow_high[at] + 1e-6


@pytest.mark.parametrize(
    ("into", "dtype"),
    [(BF16, torch.bfloat16), (E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)],
)
def test_what_fp16_flushed_counts_in_formats_that_flush_it_too(into, dtype: torch.dtype) -> None:
    """At the bounds of each format lies the cast of values of which fp16 has flushed a third. bf16 flushes none."""
    exact = sparse()(1.0) * 2.0**-20
    now = of_samples(samples(lambda scale: exact.half().float(), [10]))
    assert now is not None
    share = float(((exact.half() == 0) & (exact != 0)).float().mean())
    assert share > 0.3
    gone = Flushed(share, 0.98 * share, 1.02 * share, now.zeros - share, share, 0.0, 3, 1.0)
    found = curve(now, gone, into)
    for level in (4, 8, 10, 12, 16, 18, 24):
        cast = (exact * 2.0 ** (level - 10)).to(dtype).float()
        flushed = float(((cast == 0) & (exact != 0)).float().mean())
        at = LEVELS.index(level)
        assert found.underflow_low[at] - 1e-6 <= flushed <= found.underflow_high[at] + 1e-6
    assert into is not BF16 or found.underflow_high[LEVELS.index(10)] == 0.0


@pytest.mark.parametrize(
    ("into", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)]
)
def test_values_that_round_up_to_normal_are_not_claimed_as_subnormal(
    into: FloatFormat, dtype: torch.dtype
) -> None:
    """The subnormal share of values just below fp8's smallest normal number lies within its bounds."""
    values = torch.linspace(0.25, 1, 100).half().float() * 2.0**into.exponent_min_normal
    now = of_samples(samples(lambda scale: values, [12]))
    assert now is not None
    found, at = curve(now, None, into), LEVELS.index(12)
    share = float((values.to(dtype).float() < into.min_normal).float().mean())
    assert share < 0.95
    assert found.subnormal_low[at] <= share <= found.subnormal_high[at]


def test_the_best_scale_leaves_the_headroom() -> None:
    """The best scale is the largest power of two that leaves the requested headroom below 65504."""
    seen = samples(underflow_network(), [10])
    now = of_samples(seen)
    assert now is not None
    for headroom in (1.0, 4.0):
        found = best(now, flushed_in(seen), headroom)
        largest = float(seen.on_grid.amax[0]) / 2.0**10 * found.scale
        assert largest * 2.0**headroom <= 65504 < largest * 2.0 ** (headroom + 1)
        assert found.underflow_high < 0.003


@pytest.mark.parametrize("scale", [48_000.0, 1536.0, 1.3])
def test_the_headroom_is_that_of_the_power_of_two(scale: float) -> None:
    """A largest element that was measured at a scale beside a power of two is moved to it."""
    largest = 3.0
    seen = samples(lambda _: torch.tensor([1.0, largest]), [0])
    both = [
        of_samples(replace(seen, scale=np.array([scale]))),
        of_parameter(scale, [0, 1], 0, 1, largest, 7),
    ]
    for now in both:
        assert now is not None
        found = best(now, None, 0.0)
        assert largest / scale * found.scale <= FP16.max < 2 * largest / scale * found.scale
        assert found.headroom_bits == pytest.approx(
            np.log2(FP16.max / (largest / scale * found.scale))
        )


@pytest.mark.parametrize("make", [underflow_network, lambda: trained(TASKS["tanh"], 20)])
def test_ranges_hold_real_gradients_at_other_scales(
    make: Callable[[], Callable[[float], Tensor | None]],
) -> None:
    """Nine in ten ranges hold the share of a real gradient at another scale, smaller or larger."""
    found = np.array([holds(*each)[1:3] for each in pairs(make(), range(-8, 24, 2))])
    assert len(found) > 80
    assert (found.mean(0) >= 0.9).all()


@pytest.mark.parametrize("scale", [-6, 6])
def test_a_range_is_exact_where_rounding_cannot_matter(scale: int) -> None:
    """Values far from fp16's edges have no range, at smaller and at larger scales."""
    bins = np.zeros(BINS)
    bins[[-EXPONENT_MIN - 10, -EXPONENT_MIN]] = 0.5
    found, at = curve(Gradient(0, bins, 0.0, 1.0), None, FP16), LEVELS.index(scale)
    assert (found.underflow_low[at], found.underflow_high[at]) == (0.0, 0.0)
    assert found.subnormal_low[at] == found.subnormal_high[at] == (0.5 if scale < 0 else 0.0)


def test_a_gradient_of_zeros_may_come_back_only_at_larger_scales() -> None:
    """An all-zero gradient has nothing subnormal at its own or a smaller scale. At a larger one, all may be."""
    found = curve(Gradient(0, np.zeros(BINS), 1.0, 0.0), None, FP16)
    most = [found.subnormal_high[LEVELS.index(scale)] for scale in (-1, 0, 1)]
    assert (found.subnormal_low, most) == ([0.0] * len(LEVELS), [0.0, 0.0, 1.0])


def test_zeros_that_a_growth_brought_back_may_come_back_again() -> None:
    """Zeros that fp16 is known to have flushed may be subnormal at a larger scale, also if no small value was seen."""
    bins = np.zeros(BINS)
    bins[-EXPONENT_MIN] = 0.9
    gone = Flushed(0.05, 0.04, 0.06, 0.05, 0.05, 0.005, 1, 0.05)
    found = curve(Gradient(0, bins, 0.1, 1.0), gone, FP16)
    most = [found.subnormal_high[LEVELS.index(scale)] for scale in (-1, 0, 1)]
    assert most == pytest.approx([0.0, 0.0, 0.06])
