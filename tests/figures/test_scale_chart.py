"""The chart of the loss scale."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_series as made
from ampmon_server.charts import FIGURES, Source, View
from ampmon_server.charts.parts.layout import log2_scale
from ampmon_server.charts.parts.window import cut
from ampmon_server.charts.scale import MARKS, scale
from ampmon_server.model.aggregates.gradients import LAYOUT as GRADIENTS
from ampmon_server.model.aggregates.merging import aligned_span, starts_of
from ampmon_server.model.aggregates.updates import LAYOUT, MOVES
from ampmon_server.model.scale_policy import DEAD
from ampmon_server.model.series import Resume


def _line(figure: dict) -> dict:  # type: ignore[type-arg]
    return made.traces(figure, name="loss scale")[0]


def test_marks_that_would_overlap_are_one_with_an_exact_count() -> None:
    """A thousand growths within a few pixels are one mark with a count of 1000."""
    series = made.updates([8.0] * 1000, events=dict.fromkeys(range(1000), "grow"))
    figure = scale(made.source(series), View(0, 10_000_000, 300))
    (mark,) = made.traces(figure, name="growth")
    assert made.read(mark["customdata"]).tolist() == [1000]
    assert mark["text"][0].startswith("steps 0 – 999: 1\u202f000 growths")


def test_a_dead_scale_lies_on_a_labelled_floor() -> None:
    """Scales of 2**-128 and below, including zero, are drawn on a labelled floor."""
    series = made.updates([2.0**-126, 2.0**-128, 2.0**-140, 0.0])
    figure = scale(made.source(series), View())
    assert made.read(_line(figure)["y"]).tolist() == [-126, DEAD, DEAD, DEAD]
    floor = [label for label in figure["layout"]["annotations"] if "dead" in label["text"]]
    assert [label["y"] for label in floor] == [DEAD]
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [DEAD]


def test_a_move_after_the_newest_step_is_said() -> None:
    """The newest values end with the scale that the next step has, as the label beside the line does."""
    cells = made.updates([1024.0] * 3)
    cells["after_last"][-1] = 512.0
    figure = scale(made.source(cells), View())
    assert _line(figure)["text"][-1] == "1\u202f024 = 2¹⁰ → 512 = 2⁹"
    assert [label["text"] for label in figure["layout"]["annotations"]] == ["2<sup>9</sup> now"]
    assert _line(scale(made.source(cells), View(0, 3)))["text"][-1] == "1\u202f024 = 2¹⁰"


def test_the_axis_ends_at_an_infinite_scale() -> None:
    """The place of a scale of inf is named so, and no power of two is above it."""
    for scales, last in (
        ([2.0**126, np.inf], "∞"),
        ([1.0, np.inf], "∞"),
        ([1.0, 4.0], "2<sup>3</sup>"),
    ):
        axis = scale(made.source(made.updates(scales)), View())["layout"]["yaxis"]
        assert axis["ticktext"][-1] == last


def test_a_living_scale_has_no_floor() -> None:
    """Without a dead scale there is no floor."""
    figure = scale(made.source(made.updates([65536.0])), View())
    assert figure["layout"]["shapes"] == []


def test_a_scale_that_is_no_number_is_a_gap_and_is_said() -> None:
    """A NaN scale leaves a gap in the line, and the caption counts its updates."""
    figure = scale(made.source(made.updates([1.0, np.nan, 1.0])), View())
    assert np.isnan(made.read(_line(figure)["y"])).tolist() == [False, True, False]
    assert "In 1 step the scale was not a positive number." in figure["layout"]["meta"]["caption"]


def test_the_line_breaks_where_steps_are_missing() -> None:
    """The line breaks where steps are missing, and the caption counts them."""
    series = made.updates([1.0] * 10)[[0, 1, 2, 6, 7, 8, 9]]
    for view in (View(), View(0, 100_000)):
        figure = scale(made.source(series), view)
        drawn = made.read(_line(figure)["y"])
        assert np.isnan(drawn).sum() == 1
        assert "There is no record of 3 steps in between." in figure["layout"]["meta"]["caption"]
    line = _line(scale(made.source(series), View()))
    assert made.read(line["x"])[np.isnan(made.read(line["y"]))].tolist() == [6]


def test_steps_beyond_32_bits_are_exact() -> None:
    """Steps above 2**31 are exact."""
    figure = scale(made.source(made.updates([1.0, 2.0], first=2**33)), View())
    assert made.read(_line(figure)["x"]).tolist() == [2**33, 2**33 + 1]


def test_an_empty_chart_says_why() -> None:
    """No step yet, no step in view and a disabled scaler have different reasons."""
    some = made.source(made.updates([1.0]))
    none, off = made.source(), Source(made.source().updates, made.source().gradients, disabled=True)
    reasons = [
        scale(of, view)["layout"]["meta"]["empty"]
        for of, view in ((none, View()), (some, View(5, 10)), (off, View()))
    ]
    assert "No steps recorded" in reasons[0]
    assert reasons[1] == "No step in steps 5 – 9. Show the whole run, or zoom out."
    assert "disabled" in reasons[2]


@made.SOME
@given(made.sources(), made.views())
def test_every_column_keeps_its_extremes(source: Source, view: View) -> None:
    """In any window, the smallest and largest scale of each column are drawn, with at most four points per column."""
    window = cut(source, view)
    if not len(window.updates):
        return
    span = aligned_span(window.low, window.high, view.columns)
    line = _line(scale(source, view))
    drawn = made.read(line["y"])
    assert len(window.updates) <= view.columns
    assert len(drawn) <= 4 * view.columns
    rows = made.within(source.updates, view)
    heights, x = log2_scale(rows["scale_first"]), made.x_of(rows, view)
    at = made.read(line["x"]) if view.x == "step" else np.rint(made.read(line["x"]) * 1000)
    column = at.astype(np.int64) // span
    for part in np.unique(x // span):
        whole = heights[x // span == part]
        if not np.isnan(whole).all():
            kept = drawn[column == part] if (column == part).any() else drawn[column < part][-1:]
            assert (np.nanmin(kept), np.nanmax(kept)) == (np.nanmin(whole), np.nanmax(whole))


def test_a_scale_that_stands_has_no_points_between_its_ends() -> None:
    """Along steps a constant scale has points only at its ends; along time all points are kept."""
    series = made.updates([4.0] * 50 + [8.0] * 50)[[*range(20), *range(30, 100)]]
    line = _line(scale(made.source(series), View()))
    assert made.read(line["x"]).tolist() == [0, 19, 30, 30, 49, 50, 99]
    assert len(made.read(_line(scale(made.source(series), View(x="time")))["x"])) == 91


@made.SOME
@given(made.sources(), made.views())
def test_marks_count_every_event(source: Source, view: View) -> None:
    """In any window, the counts of the marks add up to the number of events."""
    rows = made.within(source.updates, view)
    figure = scale(source, view)
    for mark in MARKS:
        drawn = [
            trace
            for trace in made.traces(figure, name=mark.one)
            if trace["marker"]["symbol"] == mark.symbol
        ]
        counted = sum(int(made.read(trace["customdata"]).sum()) for trace in drawn)
        assert counted == rows["moves"][:, MOVES.index(mark.event)].sum()
        assert all(len(trace["text"]) <= view.columns for trace in drawn)


@pytest.mark.parametrize("name", ["scale", "skips"])
@made.SOME
@given(seed=st.integers(0, 2**32), level=st.integers(1, 5))
def test_a_chart_of_cells_is_that_of_their_rows(name: str, seed: int, level: int) -> None:
    """A chart drawn from merged cells equals the one from single updates, byte for byte."""
    rows = made.wild(3000, np.random.default_rng(seed))
    cells = LAYOUT.merge(rows, starts_of(rows["first"] >> level))
    view = View(width=100)
    window = cut(made.source(rows), view)
    assert aligned_span(window.low, window.high, view.columns) >= 32
    drawn = [orjson.dumps(FIGURES[name](made.source(of), view)) for of in (rows, cells)]
    assert drawn[0] == drawn[1]


def test_twenty_spikes_in_a_million_updates_are_all_drawn() -> None:
    """Each of 20 single-update spikes among a million updates is drawn at its step and height."""
    spikes = np.random.default_rng(7).choice(1_000_000, 20, replace=False)
    scales = np.full(1_000_000, 65536.0)
    scales[spikes] = 2.0 ** (17 + np.arange(20))
    line = _line(scale(made.source(made.rolled_up(scales)), View()))
    drawn = dict(zip(made.read(line["x"]).tolist(), made.read(line["y"]).tolist(), strict=True))
    assert [drawn[step] for step in spikes.tolist()] == list(range(17, 37))


def test_a_legend_has_the_room_that_it_needs() -> None:
    """A legend takes one row on a wide chart and two on a narrow one, and the top margin fits it."""
    events = {1: "grow", 2: "backoff", 3: "manual_set"}
    of = made.source(made.updates([1.0] * 5, events=events))
    tops = [scale(of, View(width=width))["layout"]["margin"]["t"] for width in (1200, 360)]
    assert tops == [32, 51]


def test_the_caption_says_what_a_column_holds() -> None:
    """The caption says how many steps share a column and which are drawn, unless each is drawn."""
    few, many = (
        scale(made.source(made.updates([1.0] * n)), View(width=400))["layout"]["meta"]["caption"]
        for n in (400, 4000)
    )
    assert "in a column" not in few
    assert many.endswith(
        " A column holds up to 16 steps; their first, last, lowest and highest scale are drawn."
    )


def _sampled(amax: list[float], scales: list[float], inf: list[int]) -> Source:
    """A sample at each update, with one element at the given largest magnitude and ``inf`` overflowed elements."""
    tops = [int(np.floor(np.log2(each))) if np.isfinite(each) else 3 for each in amax]
    on_grid = made.totals(made.histograms([{top: 1} for top in tops]), [0] * len(amax), inf)
    at = made.gradients(
        list(range(len(amax))), replace(on_grid, amax=np.array(amax)), scales=scales
    )
    return made.source(made.updates(scales), at)


def test_the_band_reaches_to_the_largest_scale_that_holds() -> None:
    """The band reaches to the scale at which the largest gradient equals 65504, and the caption gives the headroom."""
    figure = scale(_sampled([65504.0, 65504 / 8], [4.0, 2.0], [0, 0]), View())
    (top,) = made.traces(figure, name="headroom", mode="lines", fill=None)
    assert np.allclose(made.read(top["y"]), [2, 4, 4])
    assert top["text"] == ["headroom 0.0 bits", "headroom 3.0 bits", "headroom 3.0 bits"]
    meta = figure["layout"]["meta"]
    assert meta["caption"].endswith(
        " Headroom at the newest sample: 3.0 bits, room for 3 doublings before 65\u202f504."
    )
    assert "headroom 3.0 bits" in [label["text"] for label in figure["layout"]["annotations"]]


def test_a_sample_that_overflowed_leaves_no_room() -> None:
    """A sample that overflowed has no headroom, and the next sample has its own."""
    figure = scale(_sampled([np.inf, 8.0], [4.0, 2.0], [1, 0]), View())
    (top,) = made.traces(figure, name="headroom", mode="lines", fill=None)
    assert np.allclose(made.read(top["y"]), [2, 1 + np.log2(65504 / 8), 1 + np.log2(65504 / 8)])
    assert top["text"][0] == "headroom 0.0 bits"


def test_several_samples_of_which_one_overflowed_leave_the_room_above_what_is_finite() -> None:
    """If one of the samples in a column overflowed, the headroom is that of the finite elements, in whole bits."""
    n = 1000
    source = _sampled([8.0] * n, [1.0] * n, [0] * n)
    source.gradients["on_histogram"][:, 20] = 500
    source.gradients["on_amax"][500] = np.inf
    source.gradients["on_inf"][500] = 1
    figure = scale(source, View(width=400))
    (top,) = made.traces(figure, name="headroom", mode="lines", fill=None)
    assert np.unique(np.round(made.read(top["y"]), 3)).tolist() == [12, 12.999]
    assert " Headroom at the newest samples: 13.0 bits" in figure["layout"]["meta"]["caption"]


@pytest.mark.parametrize("rolled_up", [False, True])
def test_the_limit_is_that_of_the_lowest_scale_of_a_column(rolled_up: bool) -> None:
    """The headroom of a column is limited by its lowest scale."""
    scales = [2.0**16] * 100 + [2.0**10] * 100 + [2.0**16] * 100
    source = _sampled([60_000.0] * 300, scales, [0] * 300)
    if rolled_up:
        one = GRADIENTS.merge(source.gradients, np.zeros(1, np.int64))
        source = replace(source, gradients=one)
    figure = scale(source, View(-1700, 1700, width=100))
    (top,) = made.traces(figure, name="headroom", mode="lines", fill=None)
    assert made.read(top["y"]).min() == pytest.approx(10 + np.log2(65504 / 60_000))


def test_every_start_is_marked() -> None:
    """A resume with the scaler's state and one without have different marks on the line."""
    resumes = (
        Resume(3, made.START + 300_000, 8.0, 8.0, restored=True),
        Resume(6, made.START + 600_000, 8.0, 65536.0, restored=False),
    )
    figure = scale(replace(made.source(made.updates([8.0] * 10)), resumes=resumes), View())
    went_on, anew = (made.traces(figure, name=each)[0] for each in ("resumed", "not restored"))
    assert (made.read(went_on["x"]).tolist(), made.read(went_on["y"]).tolist()) == ([3], [3])
    assert went_on["text"] == ["step 3: resumed, its state restored<br>8 = 2³"]
    assert (made.read(anew["x"]).tolist(), made.read(anew["y"]).tolist()) == ([6], [16])
    assert went_on["marker"]["symbol"] != anew["marker"]["symbol"]
