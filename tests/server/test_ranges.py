"""Ranges of integers, checked against sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ampmon_server.store.pages import ranges


NUMBERS = st.lists(st.integers(0, 60), max_size=40)


def held(found: list[ranges.Range]) -> set[int]:
    return {number for first, last in found for number in range(first, last + 1)}


@given(NUMBERS, NUMBERS)
def test_ranges_hold_what_was_added(first: list[int], second: list[int]) -> None:
    """Merged ranges hold exactly the numbers of both, in the fewest sorted ranges."""
    merged = ranges.merge([*ranges.from_numbers(first), *ranges.from_numbers(second)])

    assert held(merged) == {*first, *second}
    assert all(one[1] + 1 < other[0] for one, other in pairwise(merged))
    assert ranges.size(merged) == len({*first, *second})


@given(NUMBERS, NUMBERS)
def test_absent_numbers_are_those_not_held(numbers: list[int], others: list[int]) -> None:
    """`absent` returns the indices of the numbers that no range holds."""
    ordered = sorted(set(numbers))
    found = ranges.absent(ordered, ranges.from_numbers(others))

    assert [ordered[index] for index in found] == [n for n in ordered if n not in others]


@given(NUMBERS)
def test_missing_counts_the_holes(numbers: list[int]) -> None:
    """`missing` counts the numbers below the last that no range holds."""
    expected = max(numbers, default=-1) + 1 - len(set(numbers))

    assert ranges.missing(ranges.from_numbers(numbers)) == expected


@given(NUMBERS, st.integers(0, 60), st.integers(0, 60))
def test_gaps_hold_the_rest_of_a_window(numbers: list[int], first: int, last: int) -> None:
    """`gaps` returns the numbers of a window that are not held."""
    found = ranges.gaps(sorted(set(numbers)), first, last)

    assert held(found) == set(range(first, last + 1)) - set(numbers)
