"""The heatmap of exponents: counts, fp16's limits, and its text when empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.exponents import exponents
from ampmon_server.charts.parts.samples import judge
from ampmon_server.charts.parts.traces import apart
from ampmon_server.charts.parts.window import cut


def _map(figure: dict, word: str) -> dict:  # type: ignore[type-arg]
    return next(t for t in figure["data"] if word in t["hovertemplate"])


def _source() -> Source:
    hist = made.histograms([{-20: 9, 3: 99}, {-20: 0, 3: 999}])
    at = made.gradients([0, 10], made.totals(hist, [5, 0], [0, 2]))
    return made.source(made.updates([1.0] * 11), at)


def test_a_cell_has_the_colour_of_log10_of_one_more_than_its_count() -> None:
    """A cell's colour is log10(1 + count), and there is no cell for a count of zero."""
    cells = _map(exponents(_source(), View()), "2<sup>")
    rows = made.read(cells["y"]).tolist()
    z = made.read(cells["z"])
    assert np.allclose(z[rows.index(3)], [2, 3])
    assert np.isclose(z[rows.index(-20), 0], 1)
    assert np.isnan(z[rows.index(-20), 1])
    assert made.read(cells["customdata"])[rows.index(3)].tolist() == [99, 999]
    assert made.read(cells["x"]).tolist() == [0, 10]


def test_on_a_phone_the_axis_title_is_out_of_the_colour_bars_way() -> None:
    """On a narrow chart the axis title is an annotation below the ticks, away from the colour bar."""
    wide, narrow = (exponents(_source(), View(width=width))["layout"] for width in (1000, 358))
    assert wide["xaxis"]["title"]["text"] == "step"
    assert narrow["xaxis"]["title"] is None
    (label,) = [each for each in narrow["annotations"] if each["text"] == "step"]
    assert (label["yref"], label["y"], label["yanchor"]) == ("paper", 0, "top")
    assert -narrow["margin"]["b"] < label["yshift"] < -16


def test_rows_go_from_the_least_to_the_greatest_exponent_seen() -> None:
    """Rows range from the smallest to the largest exponent in the samples."""
    rows = made.read(_map(exponents(_source(), View()), "2<sup>")["y"])
    assert rows.tolist() == list(range(-20, 4))


def test_the_limits_of_fp16_are_labelled_lines_between_rows() -> None:
    """fp16's limits are labelled lines at the edges of rows: above exponent 15, below -14 and below -24."""
    layout = exponents(_source(), View())["layout"]
    labels = {label["text"]: label["y"] for label in layout["annotations"]}
    assert labels == {
        "overflow<br>65\u202f504 ÷ scale": 15.5,
        "subnormal<br>2<sup>-14</sup> ÷ scale": -14.5,
        "smallest<br>2<sup>-24</sup> ÷ scale": -24.5,
    }
    low, high = layout["yaxis"]["range"]
    assert all(low < height < high for height in labels.values())


def _moved(scales: list[float]) -> Source:
    """Samples at these scales of a gradient between 2**-10 and 2**-9 before scaling."""
    levels = [int(np.log2(scale)) for scale in scales]
    hist = made.histograms([{level - 10: 10} for level in levels])
    at = made.gradients(
        list(range(len(scales))), made.totals(hist, [0] * len(scales)), scales=scales
    )
    return made.source(made.updates(scales), at)


def _lines(figure: dict) -> list[list[float]]:  # type: ignore[type-arg]
    """The heights of the limit lines, from top to bottom."""
    drawn = [t for t in figure["data"] if t.get("line", {}).get("color") == "role:ink"]
    return [made.read(trace["y"]).tolist() for trace in drawn]


def test_the_gradient_stays_and_the_window_slides() -> None:
    """When the scale changes, the unscaled gradient stays in its row and fp16's limits move."""
    figure = exponents(_moved([4.0, 8.0, 8.0, 2.0]), View())
    cells = _map(figure, "2<sup>")
    assert made.read(cells["y"]).tolist() == [-10]
    assert made.read(cells["customdata"]).tolist() == [[10, 10, 10, 10]]
    overflow, subnormal, smallest = _lines(figure)
    assert overflow == [13.5, 13.5, 12.5, 12.5, 14.5, 14.5]
    assert np.subtract(overflow, subnormal).tolist() == [30] * 6
    assert np.subtract(subnormal, smallest).tolist() == [10] * 6


@pytest.mark.parametrize(
    ("name", "lines"),
    [("fp16", (15.5, -14.5, -24.5)), ("e4m3", (8.5, -6.5, -9.5)), ("e5m2", (15.5, -14.5, -16.5))],
)
def test_each_format_has_its_window(name: str, lines: tuple[float, ...]) -> None:
    """The limits are those of the chosen format at the current scale."""
    figure = exponents(_moved([1.0, 1.0]), View(format=name))
    assert [each[0] for each in _lines(figure)] == list(lines)
    window = figure["layout"]["meta"]["window"]
    ends = [window[end] - 0.5 for end in ("overflow", "normal", "smallest")]
    assert ends == list(lines)
    (choice,) = figure["layout"]["meta"]["choices"]
    assert choice["chosen"] == name


def test_what_bf16_can_hold_is_said_where_it_is_beyond_the_plot() -> None:
    """bf16's limits are outside the plot, so the caption states them and no line is drawn."""
    figure = exponents(_moved([1.0, 1.0]), View(format="bf16"))
    assert _lines(figure) == [[], [], []]
    assert figure["layout"]["annotations"] == []
    assert "bf16 holds magnitudes from 2⁻¹³³ to below 2¹²⁸." in figure["layout"]["meta"]["caption"]


def test_a_scale_that_is_no_number_has_no_unscaled_gradient() -> None:
    """Samples at a scale of 0 or NaN are left out, and the chart says so if there are no others."""
    hist = made.histograms([{0: 9}, {0: 7}])
    for scales, drawn in (([0.0, 1.0], [[7]]), ([0.0, np.nan], None)):
        at = made.gradients([0, 1], made.totals(hist, [0, 0]), scales=scales)
        figure = exponents(made.source(made.updates(scales), at), View())
        if drawn is None:
            assert "positive scale" in figure["layout"]["meta"]["empty"]
        else:
            assert made.read(_map(figure, "2<sup>")["customdata"]).tolist() == drawn


def test_a_lone_sample_is_wide_enough_to_be_seen() -> None:
    """A single sample in a long run is drawn about 1 % of the run wide, centred at its step."""
    hist = made.histograms([{0: 10}])
    at = made.gradients([500], made.totals(hist, [0]))
    figure = exponents(made.source(made.updates([1.0] * 1000), at), View())
    assert np.allclose(made.read(_map(figure, "2<sup>")["x"]), [500 - 4.995, 500 + 4.995])


def test_one_count_has_one_colour_in_every_window() -> None:
    """The colour range reaches from zero to all sampled elements, in every window."""
    axis = exponents(_source(), View())["layout"]["coloraxis"]
    assert (axis["cmin"], axis["cmax"]) == (0, np.log10(1 + 1001))
    assert axis["colorscale"] == "role:counts"


def test_an_empty_chart_says_why() -> None:
    """Without samples the chart says how often they are taken."""
    reason = exponents(made.source(made.updates([1.0])), View())["layout"]["meta"]["empty"]
    assert "at least every 128 steps" in reason


@made.SOME
@given(made.sources(), made.views())
def test_columns_have_the_mean_of_their_samples(source: Source, view: View) -> None:
    """The column means account for every counted element, and `window` has all counts by exponent."""
    window = cut(source, view)
    scale = window.gradients["scale_last"]
    judged = judge(replace(window, gradients=window.gradients[(scale > 0) & np.isfinite(scale)]))
    figure = exponents(source, view)
    if judged is None or not figure["data"]:
        return
    counts = made.read(_map(figure, "2<sup>")["customdata"])
    columns = apart(judged.centres, window.gaps)
    samples = np.where(columns.empty, 0, judged.of("samples")[columns.taken])
    assert len(judged.cells) <= view.columns // 4
    counted = judged.of("histogram").sum()
    assert np.isclose((counts * samples).sum(), counted, rtol=1e-6)
    sent = figure["layout"]["meta"]["window"]
    assert sum(sent["counts"]) == counted
    assert sent["elements"] == max(judged.classes().total.sum(), 1)


def test_samples_that_share_a_column_are_divided_by_their_own_scales() -> None:
    """The shares that a format loses are the same on a wide and on a narrow screen."""
    hist = made.histograms([{0: 8}] * 2000)
    at = made.gradients(
        list(range(2000)),
        made.totals(hist, [0] * 2000),
        scales=(2.0 ** np.repeat([16, 10, 15, 3], 500)).tolist(),
    )
    source = made.source(made.updates([1.0] * 2000), at)
    sent = [
        exponents(source, View(width=width))["layout"]["meta"]["window"]
        for width in (1000, 390, 100)
    ]
    counts = {-16: 4000, -15: 4000, -10: 4000, -3: 4000}
    for each in sent:
        found = {each["first"] + row: count for row, count in enumerate(each["counts"]) if count}
        assert found == counts


def test_one_inf_among_many_samples_is_seen() -> None:
    """One overflowed element among a thousand samples in a column is still drawn, as a count of one."""
    hist = made.histograms([{0: 10}] * 1000)
    at = made.gradients(
        list(range(1000)), made.totals(hist, [1] * 1000, [0] * 500 + [1] + [0] * 499)
    )
    figure = exponents(made.source(made.updates([1.0] * 1000), at), View(0, 10**6))
    assert made.read(_map(figure, "inf or NaN")["customdata"]).tolist() == [[1]]
    assert made.read(_map(figure, "zero")["customdata"]).tolist() == [[1]]
    assert "Up to 1\u202f000 samples share a column" in figure["layout"]["meta"]["caption"]


def test_a_column_stands_in_the_middle_of_its_stretch() -> None:
    """A column of several samples is centred in its x range, and a single sample is at its step."""
    steps = list(range(0, 800, 2))
    at = made.gradients(steps, made.totals(made.histograms([{0: 9}] * 400), [0] * 400))
    of = made.source(made.updates([1.0] * 800), at)
    assert made.read(_map(exponents(of, View(width=400)), "2<sup>")["x"])[:3].tolist() == [
        3.5,
        11.5,
        19.5,
    ]
    assert made.read(_map(exponents(of, View(0, 9)), "2<sup>")["x"]).tolist() == [0, 2, 4, 6, 8]


def test_a_single_element_is_in_the_singular() -> None:
    """The caption of a model with one weight says "1 element"."""
    at = made.gradients([0], made.totals(made.histograms([{0: 1}]), [0]))
    caption = exponents(made.source(made.updates([1.0]), at), View())["layout"]["meta"]["caption"]
    assert "Covers 1 element in" in caption


def test_overflowed_gradients_do_not_hide_the_others() -> None:
    """If all fp16 gradients are inf, the fp32 gradients are drawn. If those are too, the caption says so."""
    hist, none = made.histograms([{0: 9}, {0: 7}]), made.histograms([{}, {}])
    lost = made.totals(none, [0, 0], [10, 0])
    captions = []
    for off_grid in (made.totals(hist, [0, 0]), None):
        at = made.gradients([0, 5], lost, off_grid)
        figure = exponents(made.source(made.updates([1.0] * 6), at), View())
        captions.append(figure["layout"]["meta"]["caption"])
    assert captions[0].startswith("2 sampled steps. Covers 7 elements")
    assert captions[1] == (
        "1 sampled step. Covers 10 elements in 4 parameters, all of them inf or NaN: "
        "nothing to judge. "
        "At the newest scale fp16 holds magnitudes from 2⁻²⁴ to below 2¹⁶."
    )
