"""The benchmarks of the page: what they make of what they saw. They run by `make bench-page`."""

from __future__ import annotations

from benchmarks.page import memory, opening
from benchmarks.page.arrival import Told, latencies
from benchmarks.page.effort import QUICK


def test_an_update_has_arrived_with_the_first_frame_that_shows_it_or_a_later_one() -> None:
    """Four updates 10 ms apart, seen two at a time: the second of each pair waited less; the first is warm-up."""
    told = Told([0, 10_000_000, 20_000_000, 30_000_000], [(1, 25.0), (3, 60.0)])
    assert latencies(told, 0) == [25.0, 15.0, 40.0, 30.0]
    assert latencies(told, 1) == [15.0, 40.0, 30.0]


def test_memory_is_flat_where_the_end_holds_no_more_than_a_tenth_above_the_beginning() -> None:
    """The first sixth of the readings, while the charts fill, is left out."""
    flat = memory._row("heap_MB", QUICK, [1.0] * 5 + [10.0] * 25)
    leaking = memory._row("heap_MB", QUICK, [10.0 + reading for reading in range(30)])
    assert (flat["late_to_early"], flat["holds"]) == (1.0, "yes")
    assert leaking["holds"] == "no"


def test_a_figure_is_held_to_its_bar() -> None:
    """With the worst of all times beside it; a figure without a bar is told as it is."""
    row = opening._row("first_chart_ms", QUICK, 270.0, [240.0, 270.0, 330.0])
    assert (row["to_bar"], row["holds"], row["worst"]) == (0.9, "yes", 330.0)
    assert opening._row("plotly_script_ms", QUICK, 900.0, [900.0])["holds"] is None
