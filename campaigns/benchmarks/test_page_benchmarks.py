"""How the page benchmarks evaluate their measurements. `make bench-page` runs the benchmarks themselves."""

from __future__ import annotations

from benchmarks.page import QUICK, memory, opening
from benchmarks.page.arrival import Arrivals, latencies


def test_an_update_has_arrived_with_the_first_frame_that_shows_it_or_a_later_one() -> None:
    """Of four updates 10 ms apart, painted two at a time, the second of each pair waited less; warm-up is left out."""
    arrivals = Arrivals([0, 10_000_000, 20_000_000, 30_000_000], [(1, 25.0), (3, 60.0)])
    assert latencies(arrivals, 0) == [25.0, 15.0, 40.0, 30.0]
    assert latencies(arrivals, 1) == [15.0, 40.0, 30.0]


def test_memory_is_flat_where_the_end_holds_no_more_than_a_tenth_above_the_beginning() -> None:
    """Memory is flat if it ends within 10 % of its early level; the first sixth, while charts fill, is left out."""
    flat = memory._row("heap_MB", QUICK, [1.0] * 5 + [10.0] * 25)
    leaking = memory._row("heap_MB", QUICK, [10.0 + reading for reading in range(30)])
    assert (flat["late_to_early"], flat["holds"]) == (1.0, "yes")
    assert leaking["holds"] == "no"


def test_a_figure_is_held_to_its_bar() -> None:
    """A row has its ratio to the bar and the worst time; a figure without a bar has no verdict."""
    row = opening._row("first_chart_ms", QUICK, 270.0, [240.0, 270.0, 330.0])
    assert (row["to_bar"], row["holds"], row["worst"]) == (0.9, "yes", 330.0)
    assert opening._row("plotly_script_ms", QUICK, 900.0, [900.0])["holds"] is None
