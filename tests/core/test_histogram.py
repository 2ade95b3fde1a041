"""Values derived from the exponent histogram, against real casts."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from ampmon.numerics.histogram import (
    BINS,
    EXPONENT_MIN,
    Statistics,
    classify,
    gradient_norm,
    headroom_bits,
)
from ampmon.numerics.sampling_error import RUN
from ampmon_server.analysis.rescaling import shift


HISTOGRAMS = numpy_strategies.arrays(np.int64, (3, BINS), elements=st.integers(0, 1000))


@given(HISTOGRAMS, st.integers(-80, 80))
def test_a_shift_loses_no_element(histogram: np.ndarray, bits: int) -> None:
    """Shifting keeps the number of elements; shifting back restores every bin that stayed in range."""
    shifted = shift(histogram, bits)
    assert (shifted.sum(-1) == histogram.sum(-1)).all()
    if abs(bits) < BINS:
        inner = slice(max(0, -bits) + 1, BINS - max(0, bits) - 1)
        assert (shift(shifted, -bits)[:, inner] == histogram[:, inner]).all()


@pytest.mark.parametrize("bits", [-6, -2, 0, 2, 6])
def test_the_shifted_histogram_predicts_a_real_cast(bits: int) -> None:
    """For values that fp16 never rounded, a shifted histogram predicts the share that a real cast flushes, to 1e-6."""
    torch.manual_seed(0)
    values = torch.randn(400_000) * torch.exp(torch.randn(400_000) * 4) * 1e-4
    exponents = torch.frexp(values)[1].numpy() - 1
    histogram = np.bincount(np.clip(exponents + 40, 0, BINS - 1), minlength=BINS)
    cast = ((values.double() * 2.0**bits).half() == 0).double().mean().item()
    predicted = shift(histogram, bits)[: -25 - EXPONENT_MIN].sum() / len(values)
    assert predicted == pytest.approx(cast, abs=1e-6)


def test_classes_begin_at_the_smallest_numbers_of_fp16() -> None:
    """Magnitudes from fp16's least number on are subnormal, and from its least normal number on normal."""
    smallest, normal = (torch.finfo(torch.float16).smallest_normal * share for share in (2**-10, 1))
    histogram = np.zeros(BINS, np.int64)
    for value, count in ((smallest / 2, 1), (smallest, 2), (normal / 2, 4), (normal, 8)):
        histogram[round(math.log2(value)) - EXPONENT_MIN] = count
    found = classify(histogram, np.int64(0), np.int64(0))
    assert (found.below_grid, found.subnormal, found.normal) == (1, 6, 8)


def test_the_norm_is_that_of_unscaled_gradients() -> None:
    """The norm of unscaled gradients is the root of the shards' summed squares, divided by the scale."""
    whole = torch.randn(1000).double() * 1e-3
    scaled = whole * 1024
    squares = np.array([float((part**2).sum()) for part in scaled.split(600)])
    assert gradient_norm(squares.sum(), np.float64(1024)) == pytest.approx(
        float(whole.norm()), rel=1e-12
    )
    assert gradient_norm(np.float64(1e300), np.float64(1e-200)) == math.inf, "without a warning"


def test_headroom_of_what_is_not_finite() -> None:
    """The headroom of NaN is NaN, of inf it is -inf and of zeros it is inf."""
    bits = headroom_bits(np.array([math.nan, math.inf, 0.0]))
    assert math.isnan(bits[0])
    assert bits[1:].tolist() == [-math.inf, math.inf]


def test_what_is_known_of_some_runs_is_not_known_of_the_sum() -> None:
    """Adding a fully measured gradient to a sample keeps run squares only in the classes that the full one lacks."""
    sampled, whole = Statistics.nothing([0]), Statistics.nothing([0])
    for part, zeros, subnormal in ((sampled, 2, 3), (whole, 5, 0)):
        part.looked[:] = 4 * RUN
        part.zeros[:] = zeros
        part.histogram[:, -20 - EXPONENT_MIN] = subnormal
        part.histogram[:, -EXPONENT_MIN] = 4 * RUN - zeros - subnormal
    sampled.run_squares[:] = 2, 0, 9
    added = Statistics.from_wire(Statistics.added([sampled, whole]).to_wire())
    assert added.run_squares.tolist() == [[0, 0, 9]]
    assert added.zeros.tolist() == [7]


def made(histogram: np.ndarray, zeros: int, inf: int = 0, per_run: int = 3) -> Statistics:
    """Return statistics of three parameters, with ``per_run`` elements of a class in each run that has some."""
    made = Statistics.nothing([0, 1, 2])
    made.histogram[:] = histogram
    made.zeros[:], made.inf[:] = zeros, inf
    made.looked[:] = histogram.sum(1) + zeros + inf
    made.on_grid[:] = made.looked // 2
    made.run_squares[:] = made.classes().small * per_run
    made.amax[:], made.sum_squares[:] = 4.0, 9.0
    return made


@given(HISTOGRAMS, st.integers(0, 40), st.integers(1, 9))
def test_the_average_of_what_is_alike_is_each(histogram: np.ndarray, zeros: int, by: int) -> None:
    """Averaging n equal statistics gives the same statistics."""
    each = made(histogram, zeros)
    averaged = Statistics.added([each] * by).divided(np.full(3, by))
    for name in Statistics.__slots__:
        assert getattr(averaged, name).tolist() == getattr(each, name).tolist()


@given(
    st.lists(HISTOGRAMS, min_size=1, max_size=5),
    st.integers(0, 40),
    st.integers(0, 2),
    st.sampled_from([1, 3, RUN]),
)
def test_an_average_can_be_sent(
    histograms: list[np.ndarray], zeros: int, inf: int, per_run: int
) -> None:
    """Each rounded count is within 1 of the exact average, and the averages are valid in a record."""
    added = Statistics.added([made(each, zeros, inf, per_run) for each in histograms])
    averaged = Statistics.from_wire(added.divided(np.full(3, len(histograms))).to_wire())
    for name in ("looked", "zeros", "inf", "histogram", "on_grid"):
        exact = getattr(added, name) / len(histograms)
        assert (np.abs(getattr(averaged, name) - exact) <= 1).all()


def test_statistics_take_the_place_of_others_but_for_the_norm() -> None:
    """For parameters that are finite in both, `instead` replaces the counts and keeps the norm."""
    sums, passes = made(np.full((3, BINS), 2), zeros=6), made(np.full((3, BINS), 1), zeros=3)
    sums.sum_squares[:] = 1.0
    sums.inf[1] = sums.zeros[1]
    sums.zeros[1] = 0
    joined = passes.select(np.array([2, 1])).instead(sums)
    assert joined.parameters.tolist() == [0, 1, 2]
    assert joined.looked.tolist() == [134, 134, 67]
    assert joined.zeros.tolist() == [6, 0, 3]
    assert joined.sum_squares.tolist() == [1.0] * 3


def test_records_read_together_are_those_read_one_by_one() -> None:
    """Reading records of the same parameters together gives the same arrays as one by one, with or without runs."""
    parts = [Statistics.nothing([3, 1]) for _ in range(3)]
    for index, part in enumerate(parts):
        part.looked[:] = 7 + index, 2
        part.zeros[:] = part.looked
        part.amax[:] = index, math.inf
    parts[1].run_squares[:, 0] = parts[1].zeros
    records = [part.to_wire() for part in parts]

    together = Statistics.of_alike(records)

    for one, other in zip(together, map(Statistics.from_wire, records), strict=True):
        for name in Statistics.__slots__:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_records_that_differ_or_cannot_be_are_not_read_together() -> None:
    """Reading together raises an error if a record has other parameters, is cut short or has impossible counts."""
    good = Statistics.nothing([0, 1])
    wrong = Statistics.nothing([0, 1])
    wrong.looked[1] = 1
    records = [good.to_wire(), Statistics.nothing([0, 2]).to_wire(), wrong.to_wire()]
    records.append(msgspec.structs.replace(records[0], zeros=bytes(8)))

    for other in records[1:]:
        with pytest.raises(ValueError, match=r"^gradients\."):
            Statistics.of_alike([records[0], other])
