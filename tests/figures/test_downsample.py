"""Column widths that are powers of two."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

import made_series as made
from ampmon_server.model.aggregates.merging import aligned_span


@made.SOME
@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(2, 1000))
def test_an_aligned_span_is_the_least_power_of_two_that_fits(a: int, b: int, most: int) -> None:
    """The aligned span is the smallest power of two that cuts the range into at most ``most`` parts."""
    low, high = min(a, b), max(a, b)
    span = aligned_span(low, high, most)
    assert math.log2(span).is_integer()
    assert high // span - low // span < most
    assert span == 1 or high // (span // 2) - low // (span // 2) >= most


@made.SOME
@given(st.integers(0, 10**6), st.floats(1e-3, 10**6), st.integers(2, 1000))
def test_between_whole_numbers_a_span_is_a_power_of_two_as_well(
    low: int, length: float, most: int
) -> None:
    """For a non-integer range too, the span is the smallest power of two that fits."""
    high = low + length
    span = aligned_span(low, high, most)
    assert math.log2(span).is_integer()
    assert high // span - low // span < most <= high // (span / 2) - low // (span / 2)
