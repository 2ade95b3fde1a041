"""Skipped updates as bars and as marks below the scale, with exact counts at every zoom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.scale import scale
from ampmon_server.charts.skips import skips


def test_the_caption_says_how_many_of_how_many() -> None:
    """The caption has the number of skips, the number of steps and the share in the window."""
    series = made.updates([1.0] * 2000, skipped=set(range(0, 1200, 100)))
    caption = skips(made.source(series), View())["layout"]["meta"]["caption"]
    assert caption.startswith("12 of 2\u202f000 skipped (0.6\u202f%) in steps 0 – 1\u202f999.")


def test_each_skip_has_a_mark_at_its_step_where_there_is_room() -> None:
    """Skips more than a pixel apart have marks of their own at their steps."""
    figure = scale(made.source(made.updates([1.0] * 500, skipped={3, 250, 499})), View())
    (rug,) = made.traces(figure, name="skips")
    assert made.read(rug["x"]).tolist() == [3, 250, 499]
    assert rug["text"][1] == "step 250<br>1 skipped"


def test_a_run_without_skips_says_so() -> None:
    """A run without skips says that every step was applied, and is not an empty chart."""
    meta = skips(made.source(made.updates([1.0] * 30)), View())["layout"]["meta"]
    assert meta["caption"] == "No step skipped in steps 0 – 29."
    assert "empty" not in meta


def test_an_empty_chart_says_why() -> None:
    """Without updates the chart says that no steps are recorded."""
    assert "No steps recorded" in skips(made.source(), View())["layout"]["meta"]["empty"]


def test_a_bar_says_its_steps_and_its_share() -> None:
    """The hover of a bar has its steps, its skips and their share."""
    series = made.updates([1.0] * 4000, skipped={0, 1, 4})
    (bars,) = made.traces(skips(made.source(series), View(width=1000)), type="bar")
    assert bars["width"] == 32
    assert bars["text"] == ["steps 0 – 31<br>3 of 32 steps skipped (9.4\u202f%)"]


@pytest.mark.parametrize("skipped", [1, 2, 4, 7, 17, 20])
def test_the_axis_has_few_numbers(skipped: int) -> None:
    """The axis has two or three numbers: more would overlap beside the plot of a phone."""
    series = made.updates([1.0] * 4000, skipped=set(range(skipped)))
    assert len(skips(made.source(series), View())["layout"]["yaxis"]["tickvals"]) in (2, 3)


@made.SOME
@given(made.sources(), made.views())
def test_counts_are_exact_in_every_window(source: Source, view: View) -> None:
    """Bars and marks each add up to the skips in the window, at most one per pixel column."""
    figures = {"skipped steps": skips(source, view), "skips": scale(source, view)}
    expected = int(made.within(source.updates, view)["skipped"].sum())
    for name, what, most in (
        ("skipped steps", "y", view.columns // 8),
        ("skips", "customdata", view.columns),
    ):
        drawn = made.traces(figures[name], name=name)
        assert sum(int(made.read(trace[what]).sum()) for trace in drawn) == expected
        assert all(len(trace["text"]) <= most for trace in drawn)


@made.SOME
@given(made.sources(), made.views())
def test_bars_stand_over_the_skips_they_count(source: Source, view: View) -> None:
    """The skips within the width of a bar equal its count."""
    unit = 1 if view.x == "step" else 1000
    rows = made.within(source.updates, view)
    x = made.x_of(rows, view)[rows["skipped"] > 0]
    for bars in made.traces(skips(source, view), type="bar"):
        middles, half = made.read(bars["x"]), bars["width"] / 2
        for middle, count in zip(middles, made.read(bars["y"]), strict=True):
            low, high = (middle - half) * unit, (middle + half) * unit
            assert np.sum((x >= low - 1e-3 * unit) & (x < high + 1e-3 * unit)) == count
