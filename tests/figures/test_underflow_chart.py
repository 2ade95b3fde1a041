"""The chart of the classes of gradient elements: exact shares, extremes, and its text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import made_series as made
from ampmon_server.analysis.flushed import Flushed
from ampmon_server.charts import Source, View
from ampmon_server.charts.parts.layout import MARGIN_RIGHT
from ampmon_server.charts.parts.samples import judge
from ampmon_server.charts.parts.window import cut
from ampmon_server.charts.underflow import FATES, underflow
from ampmon_server.model.words import percent


def _one(**counts: int) -> Source:
    """One sample at step 0, by default with 60 normal, 25 subnormal, 5 zero and 10 infinite elements."""
    have = {"normal": 60, "subnormal": 25, "zero": 5, "inf": 10} | counts
    hist = made.histograms([{0: have["normal"], -20: have["subnormal"]}])
    on_grid = made.totals(hist, [have["zero"]], [have["inf"]])
    return made.source(made.updates([1.0]), made.gradients([0], on_grid))


def _lines(figure: dict) -> dict[str, list[float]]:  # type: ignore[type-arg]
    """The heights of each line by name, including the undrawn one of normal elements."""
    lines = [t for t in figure["data"] if t.get("mode") in {"lines", "lines+markers", "none"}]
    return {t["name"]: made.read(t["y"]).tolist() for t in lines if t.get("fill") is None}


def test_the_lines_are_on_a_log_scale_with_none_on_the_floor() -> None:
    """Shares are on a log axis, and a share of zero is on the floor, labelled 0 %."""
    figure = underflow(_one(zero=0), View())
    lines = _lines(figure)
    axis = figure["layout"]["yaxis"]
    floor = axis["range"][0]
    assert np.isclose(lines["subnormal"][0], np.log10(25 / 95))
    assert set(lines["zero"]) == {floor}
    assert axis["ticktext"][axis["tickvals"].index(floor)] == "0\u202f%"


def test_the_longest_label_has_room_in_the_margin() -> None:
    """The label of any share fits in the right margin."""
    name = max((fate.word for fate in FATES), key=len)
    letters = max(len(f"{name} {percent(share)}") for share in np.geomspace(1e-7, 1, 500).tolist())
    assert 6 + 6 * letters <= MARGIN_RIGHT, (
        "letters of 11 pixels are 6 wide, 6 pixels from the plot"
    )


def test_labels_of_lines_near_the_top_stay_within_the_plot() -> None:
    """Three lines at a third each are labelled below the top of the axis, where Plotly still draws a label."""
    layout = underflow(_one(normal=1, subnormal=33, zero=33, inf=33), View())["layout"]
    heights = [each["y"] for each in layout["annotations"]]
    assert len(heights) == 3
    assert max(heights) <= layout["yaxis"]["range"][1]
    assert min(np.diff(heights)) > 0.4


def test_classes_that_never_occur_are_left_out_but_the_usual_ones() -> None:
    """Only subnormal and zero are always drawn; other lost classes only if they occur. Normal has only a hover."""
    figure = underflow(_one(inf=0, zero=0, subnormal=0), View())
    assert list(_lines(figure)) == ["normal", "subnormal", "zero"]
    (held,) = made.traces(figure, mode="none")
    assert (held["name"], held["text"]) == ("normal", ["100\u202f%"] * 2)


def test_the_caption_says_of_what_and_how_well_known() -> None:
    """The caption has elements, parameters and those left out, and the standard error if it is a sample."""
    hist = made.histograms([{0: 1480, -20: 120}])
    on_grid, off_grid = made.totals(hist, [0]), made.totals(hist, [7])
    few = made.totals(hist, [0], runs=100)
    exact = made.gradients([0], on_grid, off_grid)
    sampled = made.gradients([0], few, off_grid)
    words = [
        underflow(made.source(made.updates([1.0]), at), View())["layout"]["meta"]["caption"]
        for at in (exact, sampled)
    ]
    assert words[0] == (
        "92.5\u202f% normal, 7.5\u202f% subnormal, 0\u202f% zero at step 0. Covers 1\u202f600 elements "
        "in 4 parameters representable in fp16; 4 other parameters left out."
    )
    # 100 independent runs: about sqrt(p (1 - p) / 100). With none seen, up to 3.7 % can be expected
    assert words[1].startswith(
        "92.5\u202f% normal, 7.5\u202f% ± 2.7\u202f% subnormal, 0\u202f% ± 0.94\u202f% zero at step 0."
    )
    assert words[1].endswith(" Estimated from a sample: ± is the standard error.")


def test_a_sample_has_its_interval_around_each_line() -> None:
    """A sampled share has a band with its 95 % interval; an exact one has none."""
    hist = made.histograms([{0: 1480, -20: 120}] * 2)
    sampled = made.gradients([0, 4], made.totals(hist, [0, 0], runs=100))
    figure = underflow(made.source(made.updates([1.0] * 9), sampled), View())
    (band,) = made.traces(figure, name="subnormal, 95\u202f%")
    (line,) = made.traces(figure, name="subnormal")

    assert made.read(band["x"]).tolist() == [0, 4, 4, 8, 8, 4, 4, 0]
    ends = 100 * 10 ** made.read(band["y"])
    # Wilson's interval for 7.5 of 100
    assert ends == pytest.approx([14.3] * 4 + [3.8] * 4, abs=0.1)
    assert line["text"][0] == "7.5\u202f% (95\u202f%: 3.8\u202f% – 14.4\u202f%)"
    exact = underflow(_one(), View())
    assert not [trace for trace in exact["data"] if trace.get("fill") == "toself"]


def test_without_a_parameter_on_the_grid_the_others_are_shown_with_a_note() -> None:
    """If no parameter is on fp16's grid, the others are drawn and the caption says so."""
    off_grid = made.totals(made.histograms([{0: 50, -30: 50}]), [0])
    figure = underflow(
        made.source(made.updates([1.0]), made.gradients([0], off_grid=off_grid)), View()
    )
    assert "none of them fp16-representable" in figure["layout"]["meta"]["caption"]
    assert np.isclose(_lines(figure)["below range"][0], np.log10(0.5))


def test_an_empty_chart_says_why() -> None:
    """No samples, no samples in view and samples without elements have different reasons."""
    series = made.updates([1.0] * 20)
    for of, view, words in (
        (made.source(series), View(), "No gradient sampled"),
        (made.source(series, _one().gradients), View(5, 8), "No sampled gradient in steps 5 – 7"),
        (made.source(series, made.gradients([0])), View(), "hold no elements"),
    ):
        assert words in underflow(of, view)["layout"]["meta"]["empty"]


@made.SOME
@given(made.sources(), made.views())
def test_extremes_are_kept(source: Source, view: View) -> None:
    """In any window each line reaches the smallest and largest share, with at most one point per column."""
    window = cut(source, view)
    judged = judge(window)
    figure = underflow(source, view)
    if judged is None:
        assert figure["layout"]["meta"]["empty"]
        return
    floor = figure["layout"]["yaxis"]["range"][0]
    shares = window.gradients[f"{judged.side}_last_share"]
    seen = shares[window.gradients[f"{judged.side}_samples"] > 0]
    for fate in FATES:
        for line in made.traces(figure, name=fate.word):
            with np.errstate(divide="ignore"):
                heights = np.maximum(np.log10(seen[:, fate.place]), floor)
            every = made.read(line["y"])
            drawn = every[np.isfinite(every)]
            assert (drawn.min(), drawn.max()) == (heights.min(), heights.max())
            assert len(drawn) <= view.columns + 1 + np.count_nonzero(np.isnan(every))


def _flushed(scales: list[float], **estimate: float) -> Source:
    """Samples of 90 numbers and 10 zeros at these scales, with an estimate of flushed zeros."""
    n = len(scales)
    on_grid = made.totals(made.histograms([{0: 90}] * n), [10] * n)
    at = made.gradients(list(range(n)), on_grid, scales=scales)
    base = {"low": 0.01, "estimate": 0.02, "high": 0.04, "seen": 0.02, "error": 0.001, "small": 0.5}
    gone = Flushed(**{**base, **estimate}, structural=0.08, experiments=1)
    return replace(made.source(made.updates(scales), at), flushed=gone, newest=True)


def test_what_was_flushed_is_an_estimate_within_bounds() -> None:
    """Flushed zeros are a dashed line with hatched bounds, only since the last change of the scale."""
    figure = underflow(_flushed([8.0, 8.0, 4.0, 4.0]), View())
    (bounds,) = made.traces(figure, name="flushed, its bounds")
    (line,) = made.traces(figure, name="flushed")
    assert np.allclose(made.read(bounds["y"]), np.log10([0.04] * 4 + [0.01] * 4))
    assert (line["line"]["dash"], set(made.read(line["x"]))) == ("dash", {2, 3})
    assert np.allclose(made.read(line["y"]), np.log10(0.02))
    assert bounds["fillpattern"]["shape"]
    assert figure["layout"]["meta"]["caption"].endswith(
        " fp16 flushed some of the zeros: an estimated 2\u202f% (1\u202f% – 4\u202f%) of all elements."
    )


def test_where_nothing_was_flushed_the_caption_says_none() -> None:
    """An estimate of exactly nothing, with no bounds, is a sentence without numbers, and no line."""
    figure = underflow(_flushed([8.0, 8.0, 4.0], low=0.0, estimate=0.0, high=0.0), View())
    assert figure["layout"]["meta"]["caption"].endswith(" fp16 flushed none of the zeros.")
    assert made.traces(figure, name="flushed") == []


def test_what_is_not_known_of_flushed_zeros_is_said() -> None:
    """If flushed zeros cannot be estimated, the caption says why and nothing is drawn."""
    known = _flushed([8.0, 4.0], small=0.001)
    for source, why in (
        (known, "the data changed along with the scale"),
        (replace(known, flushed=None), "no change of the scale has samples on both sides"),
    ):
        figure = underflow(source, View())
        assert why in figure["layout"]["meta"]["caption"]
        assert made.traces(figure, name="flushed") == []
    of_the_past = underflow(replace(known, flushed=None, newest=False), View())
    assert "lushed" not in of_the_past["layout"]["meta"]["caption"]
