"""Pixel columns: what they keep, and that they count exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import made_series as made
from ampmon_server.downsample import aligned_columns, aligned_span, pixel_columns


rows = st.lists(st.integers(0, 10**6), min_size=1, max_size=300).map(sorted).map(np.array)
widths = st.integers(1, 400)


def _columns(x: np.ndarray, width: int):  # type: ignore[no-untyped-def]
    return pixel_columns(x, int(x[0]), int(x[-1]), width)


@made.SOME
@given(rows, widths)
def test_columns_hold_every_row_once(x: np.ndarray, width: int) -> None:
    """Columns are consecutive, none is empty, there are at most as many as pixels, and each row is in one."""
    columns = _columns(x, width)
    assert 1 <= len(columns) <= width
    assert columns.sizes.min() >= 1
    assert columns.sizes.sum() == len(x)
    assert columns.starts[0] == 0
    assert columns.ends[-1] == len(x) - 1


@made.SOME
@given(rows, widths)
def test_a_column_is_as_wide_as_a_pixel(x: np.ndarray, width: int) -> None:
    """Rows of one column lie within one part in ``width`` of the whole."""
    columns = _columns(x, width)
    part = (x[-1] - x[0] + 1) / width
    assert (x[columns.ends] - x[columns.starts] <= part).all()


@made.SOME
@given(rows, widths, st.data())
def test_counts_are_exact(x: np.ndarray, width: int, data: st.DataObject) -> None:
    """The counts of all columns add up to that of all rows, and each is that of its own rows."""
    flags = np.array(data.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x))))
    columns = _columns(x, width)
    counts = columns.add(flags)
    assert counts.sum() == flags.sum()
    ranges = zip(columns.starts, columns.ends, strict=True)
    assert counts.tolist() == [flags[a : b + 1].sum() for a, b in ranges]


@made.SOME
@given(rows, widths, st.data())
def test_the_outline_keeps_first_last_least_and_greatest(
    x: np.ndarray, width: int, data: st.DataObject
) -> None:
    """The rows kept of each column have its first, last, least and greatest value, and are at most four."""
    floats = st.floats(allow_infinity=True, allow_nan=True)
    values = np.array(data.draw(st.lists(floats, min_size=len(x), max_size=len(x))))
    columns = _columns(x, width)
    kept = columns.outline(values)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= 4 * len(columns)
    for first, last in zip(columns.starts, columns.ends, strict=True):
        mine = kept[(kept >= first) & (kept <= last)]
        assert {first, last} <= set(mine)
        whole = values[first : last + 1]
        if not np.isnan(whole).all():
            assert np.nanmin(values[mine]) == np.nanmin(whole)
            assert np.nanmax(values[mine]) == np.nanmax(whole)


@made.SOME
@given(rows, st.integers(2, 200), st.integers(1, 300))
def test_aligned_columns_stay_as_rows_are_added(x: np.ndarray, most: int, seen: int) -> None:
    """With the same span, every column but the newest is what it was before more rows came."""
    span = aligned_span(int(x[0]), int(x[-1]), most)
    before = aligned_columns(x[: min(seen, len(x))], span)
    after = aligned_columns(x, span)
    assert after.starts[: len(before)].tolist() == before.starts.tolist()


@made.SOME
@given(st.integers(0, 2**50), st.integers(0, 2**50), st.integers(2, 1000))
def test_an_aligned_span_is_the_least_power_of_two_that_fits(a: int, b: int, most: int) -> None:
    """It cuts the stretch into at most as many parts as asked for, and half of it would cut it into more."""
    low, high = min(a, b), max(a, b)
    span = aligned_span(low, high, most)
    assert span.bit_count() == 1
    assert high // span - low // span < most
    assert span == 1 or high // (span // 2) - low // (span // 2) >= most


def test_no_rows_make_no_columns() -> None:
    """Without rows there are no columns, no counts and no outline."""
    columns = aligned_columns(np.zeros(0, np.int64), 1)
    assert len(columns) == 0
    assert columns.add(np.zeros(0, bool)).tolist() == []
    assert columns.outline(np.zeros(0)).tolist() == []
