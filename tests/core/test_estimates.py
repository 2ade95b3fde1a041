"""Errors estimated from a sample of runs, against formulas and against all possible samples."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampmon.numerics.sampling_error import (
    RUN,
    elements_of,
    grain,
    interval,
    run_counts,
    share_variance,
    standard_error,
)


@given(st.lists(st.integers(0, RUN), max_size=40), st.integers(0, 2**32))
def test_runs_are_counted_apart(counts: list[int], seed: int) -> None:
    """`run_counts` returns each run's number of members, 0 to 16, wherever they are in the run."""
    random = np.random.default_rng(seed)
    runs = [random.permutation(RUN) < count for count in counts]
    member = np.concatenate([np.zeros(0, bool), *runs])
    assert run_counts(member).tolist() == counts


@given(st.lists(st.integers(0, RUN), min_size=4, max_size=8), st.integers(2, 4))
def test_the_variance_is_unbiased(population: list[int], size: int) -> None:
    """Averaged over all possible samples, the estimated variance equals the variance of the shares, up to rounding."""
    drawn = np.array(list(combinations(population, size)))
    counts, squares = drawn.sum(1), (drawn**2).sum(1)
    looked, numel = np.int64(RUN * size), np.int64(RUN * len(population))
    estimated = share_variance(counts, squares, np.full(len(drawn), looked), numel)
    assert estimated.mean() == pytest.approx((counts / looked).var(), abs=1e-12)


@given(st.lists(st.integers(0, RUN), min_size=2, max_size=50))
def test_no_variance_is_larger_than_that_of_runs_all_alike(population: list[int]) -> None:
    """Unknown squares give the variance's upper bound, p (1 - p) / (m - 1); known squares never give more."""
    counts = np.array(population)
    looked, numel = np.array([RUN * len(counts)]), np.array([10**12])
    total, squares = counts.sum(keepdims=True), (counts**2).sum(keepdims=True)
    known = share_variance(total, squares, looked, numel)
    bound = share_variance(total, np.zeros(1, np.int64), looked, numel)
    share = total / looked
    assert known <= bound + 1e-15
    assert bound == pytest.approx(share * (1 - share) / (len(counts) - 1))


def test_a_full_count_has_no_error() -> None:
    """If every element was looked at, the interval is the share itself, whatever the squares."""
    looked = np.array([1600, 1601])
    none = grain(looked, looked)
    variance = share_variance(np.array([800, 0]), np.array([9000, 0]), looked, looked)
    assert none.tolist() == variance.tolist() == [0, 0]
    low, high = interval(np.array([0.5, 0.0]), variance, none)
    assert low.tolist() == high.tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("seen", "of", "low", "high"),
    [(0, 10, 0.0, 0.2775), (1, 10, 0.0179, 0.4042), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0)],
)
def test_intervals_are_wilsons(seen: int, of: int, low: float, high: float) -> None:
    """For independent elements the interval is Wilson's, computed by hand for ten elements."""
    share = np.array(seen / of)
    ends = interval(share, share * (1 - share) / of, np.array(1 / of))
    assert np.array(ends) == pytest.approx([low, high], abs=1e-4)


def test_a_class_that_was_not_seen_is_bounded_by_the_runs() -> None:
    """A class unseen in 1024 runs has a share of at most 0.37 %, as for single elements, and an error above 0."""
    nothing = np.zeros(1, np.int64)
    looked, numel = np.array([16_384]), np.array([10**9])
    variance = share_variance(nothing, nothing, looked, numel)
    low, high = interval(np.zeros(1), variance, grain(looked, numel))
    assert low[0] == 0
    assert high[0] == pytest.approx(0.00374, abs=1e-5)
    assert standard_error(np.zeros(1), variance, grain(looked, numel))[0] > 0


def test_one_run_says_nothing_of_how_runs_differ() -> None:
    """A single run counts as one element, however many of its elements are in the class."""
    one = np.array([RUN])
    assert share_variance(np.array([8]), np.array([64]), one, np.array([10**9])) == pytest.approx(
        [0.25], rel=1e-6
    )


@pytest.mark.parametrize(
    ("looked", "sample", "samples", "elements"),
    [
        (1008, 1000, 1, 5000),
        (600, 1000, 1, 600),
        (1008, None, 1, 1008),
        (4 * 1008, 1000, 4, 4 * 5000),
        (3 * 1008, 1000, 4, 3 * 5000),
        (300 * 1008, 1000, 300, 300 * 5000),
        (0, 1000, 4, 0),
        (4 * 600, 1000, 4, 4 * 600),
    ],
)
def test_what_was_looked_at_stands_for_all(
    looked: int, sample: int | None, samples: int, elements: int
) -> None:
    """A sample represents the whole tensor, unless it lacks the tensor or a sparse gradient has fewer elements."""
    found = elements_of(np.array([looked]), np.array([5000]), sample, samples)
    assert found.tolist() == [elements]
