"""Pixel columns: multiples of a power of two."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import made_series as made
from ampmon_server.downsample import aligned_span


@made.SOME
@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(2, 1000))
def test_an_aligned_span_is_the_least_power_of_two_that_fits(a: int, b: int, most: int) -> None:
    """It cuts the stretch into at most as many parts as asked for, and half of it would cut it into more."""
    low, high = min(a, b), max(a, b)
    span = aligned_span(low, high, most)
    assert span.bit_count() == 1
    assert high // span - low // span < most
    assert span == 1 or high // (span // 2) - low // (span // 2) >= most
