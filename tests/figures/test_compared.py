"""Charts that compare several runs on one axis."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import made_series as made
from ampmon_server.charts import Figure, Source, View
from ampmon_server.charts.compared import COMPARED, fate, scale, skips
from ampmon_server.charts.logged import LONG, logged
from ampmon_server.charts.parts.chart import NO_USER_STEPS
from ampmon_server.charts.together import COLOURS, RUNS_MAX, Compared, shared
from ampmon_server.model.aggregates.departure import Departure, band
from ampmon_server.model.series import UserSteps


def runs(*scales: list[float], **keys: Any) -> list[Compared]:
    """Runs with these scales. The third update of each is skipped."""
    return [
        Compared(
            f"run {index}", index, made.source(made.updates(each, skipped={2})), made.START, **keys
        )
        for index, each in enumerate(scales)
    ]


def labels_of(names: list[str]) -> list[str]:
    """Return the labels of runs with these names, without the isolation of their direction."""
    source = made.source(made.updates([1.0]))
    return [Compared(name, 0, source, names=names).label.strip("\u2068\u2069") for name in names]


def test_labels_tell_names_that_begin_alike_apart() -> None:
    """Names that would have the same label leave out the words that they all begin with."""
    names = [
        *(f"llama-7b-finetune-lr{each}e-5-adamw-betas0.95" for each in (1, 10, 2)),
        "first run",
    ]
    assert labels_of(names) == [
        "…lr1e-…s0.95",
        "…lr10e…s0.95",
        "…lr2e-…s0.95",
        "first run",
    ]
    assert [shared(name, ["a-b", "a-bc", "a-b"]) for name in ("a-b", "a-bc", "b")] == [2, 2, 0]


def test_labels_of_a_grid_of_settings_differ() -> None:
    """Runs that differ in two words keep both, and only runs of the same name have the same label."""
    names = [f"llama-lr{rate}-seed{seed}" for rate in ("1e-3", "1e-4") for seed in (1, 2)]
    names += [
        "run number 5 (best)",
        "run number 5 (best) 2",
        "the same long name",
        "the same long name",
    ]
    assert labels_of(names) == [
        "…3-seed1",
        "…3-seed2",
        "…4-seed1",
        "…4-seed2",
        "run nu…best)",
        "run nu…st) 2",
        "the sa… name",
        "the sa… name",
    ]


def test_every_skip_is_counted_in_its_runs_row() -> None:
    """Each run has a row of marks at its skips, labelled with its skips and updates in view."""
    figure = skips(runs([4.0] * 4, [4.0] * 5), View(0, 4))

    assert [trace["y"] for trace in figure["data"]] == [[0], [-1]]
    assert [made.read(trace["x"]).tolist() for trace in figure["data"]] == [[2], [2]]
    assert figure["data"][0]["marker"] == {
        "symbol": "line-ns-open",
        "size": 14,
        "color": "role:run-1",
        "line": {"width": 1.5},
    }
    words = [each["text"] for each in figure["layout"]["annotations"]]
    assert words == [f"\u2068run {place}\u2069<br>1 of 4 (25\u202f%)" for place in (0, 1)]


def test_time_is_counted_from_each_runs_start() -> None:
    """Runs are aligned at their start on a linear time axis, with ticks at round durations."""
    early = made.updates([4.0] * 31)
    late = early.copy()
    for name in (
        "time_first",
        "time_last",
        "time_min",
        "time_max",
        "scale_min_time",
        "scale_max_time",
    ):
        late[name] += 10**12
    both = [
        Compared("a", 0, made.source(early), made.START),
        Compared("b", 1, made.source(late), made.START + 10**12),
    ]
    figure = scale(both, View(x="time"))
    one, other = (made.read(trace["x"]).tolist() for trace in figure["data"])

    assert one == other
    assert (one[0], one[-1]) == (0, 3000)  # ms
    axis = figure["layout"]["xaxis"]
    assert axis["unifiedhovertitle"]["text"] == "%{x|elapsed} since the start"
    assert (axis["type"], axis["ticktext"]) == (
        "linear",
        ["0", "500\u202fms", "1\u202fs", "1.5\u202fs", "2\u202fs", "2.5\u202fs", "3\u202fs"],
    )


@pytest.mark.parametrize(
    ("minutes", "width", "ticks"),
    [
        (400, 1440, ["0", "1 h", "2 h", "3 h", "4 h", "5 h", "6 h"]),
        (150, 1440, ["0", "20 min", "40 min", "1 h", "1 h 20 min", "1 h 40 min", "2 h", "2 h 20 min"]),
        (150, 390, ["0", "1 h", "2 h"]),
        (150, 320, ["0", "1 h", "2 h"]),
    ],
)  # fmt: skip
def test_ticks_of_long_runs_are_whole_and_have_room(
    minutes: int, width: int, ticks: list[str]
) -> None:
    """Ticks of hours have whole minutes and no fractions, and a narrow plot has fewer of them."""
    view = View(0, minutes * 60_000_000 + 1, x="time", width=width)
    axis = scale(runs([4.0] * 31), view)["layout"]["xaxis"]
    assert [each.replace("\u202f", " ") for each in axis["ticktext"]] == ticks


def test_ticks_closer_than_a_second_keep_their_fractions() -> None:
    """Zoomed into a tenth of a second after two minutes, no two ticks have the same words."""
    run = Compared("a", 0, made.source(made.updates([4.0] * 31)), made.START - 120_000_000)
    axis = scale([run], View(120_000_000, 120_100_001, x="time", width=390))["layout"]["xaxis"]
    words = [each.replace("\u202f", " ") for each in axis["ticktext"]]
    assert words == ["2 min", "2 min 0.05 s", "2 min 0.1 s"]


def test_times_before_a_start_are_negative() -> None:
    """A clock that was set back puts updates before their run's start, and the ticks there are negative."""
    run = Compared("a", 0, made.source(made.updates([4.0] * 31)), made.START + 2_000_000)
    axis = scale([run], View(x="time"))["layout"]["xaxis"]
    assert axis["ticktext"] == [
        f"{each}\u202f{unit}" if unit else each
        for each, unit in (
            ("−2", "s"),
            ("−1.5", "s"),
            ("−1", "s"),
            ("−500", "ms"),
            ("0", ""),
            ("500", "ms"),
            ("1", "s"),
        )
    ]


@pytest.mark.parametrize("name", COMPARED)
def test_a_chart_of_nothing_says_why(name: str) -> None:
    """A chart of runs without updates, or without any in view, gives the reason instead of lines."""
    none = [Compared("new", 0, made.source(made.updates([])))]
    assert COMPARED[name](none, View())["layout"]["meta"]["empty"].startswith(
        ("None", "No gradient")
    )
    far = COMPARED[name](runs([1.0] * 3), View(100, 200))
    assert "Show the whole run" in far["layout"]["meta"]["empty"]


@pytest.mark.parametrize("name", COMPARED)
def test_names_are_inert_and_isolated(name: str) -> None:
    """Markup in a name is escaped and a long name is cut."""
    source = made.source(
        made.updates([1.0] * 3), made.gradients([0], made.totals(made.histograms([{0: 10}]), [0]))
    )
    evil = "<b>&" + "ש" * 200
    figure = COMPARED[name]([Compared(evil, RUNS_MAX - 1, source)], View())
    said = str(figure["layout"]["annotations"]) + str([trace["name"] for trace in figure["data"]])
    assert "<b>" not in said
    assert "&lt;b&gt;&amp;" in said
    assert "ש" * 20 not in said


def test_beside_a_plot_a_value_is_whole_and_the_name_gives_way() -> None:
    """A label beside the plot keeps the whole value and shortens a long name."""
    run = Compared("planted_overflow", 0, made.source(made.updates([1.0])))
    assert run.beside("15.2 %") == "\u2068plante…rflow\u2069 15.2 %"
    assert run.beside("0.00085 %") == "\u2068plan…flow\u2069 0.00085 %"
    assert replace(run, name="ddp").beside("0.00085 %") == "\u2068ddp\u2069 0.00085 %"


def test_a_run_is_in_a_legend_once() -> None:
    """A run has one legend entry in a chart of two panels."""
    hist = made.histograms([{0: 10, -20: 3}] * 2)
    source = made.source(
        made.updates([1.0] * 3), made.gradients([0, 2], made.totals(hist, [1] * 2))
    )
    both = [Compared(name, index, source) for index, name in enumerate(("a", "b"))]
    shown = [each["name"] for each in fate(both, View(width=320))["data"] if each["showlegend"]]
    assert shown == ["\u2068a\u2069", "\u2068b\u2069"]


def _sampled(name: str, place: int, of: list[dict[int, int]], *, off: bool = False) -> Compared:
    """A run with a sample at each update, given as counts by exponent."""
    totals = made.totals(made.histograms(of), [0] * len(of))
    steps = list(range(len(of)))
    at = made.gradients(steps, None if off else totals, totals if off else None)
    return Compared(name, place, made.source(made.updates([1.0] * len(of)), at))


def test_gradients_off_fp16s_grid_are_named_and_not_set_beside_those_on_it() -> None:
    """A run whose gradients are all off fp16's grid has no line, and the caption or the empty chart names it."""
    small = {0: 6, -20: 4}
    on, off = (
        _sampled("half", 0, [small]),
        _sampled("a name that is too long for one", 1, [small], off=True),
    )
    figure = fate([on, off], View())
    assert {trace["name"] for trace in figure["data"]} == {"\u2068half\u2069"}
    why = "because they have no finite fp16-representable gradient"
    sentence = f"Not drawn, {why}: \u2068a name that …ong for one\u2069."
    assert figure["layout"]["meta"]["caption"].endswith(f" {sentence}")
    assert fate([off], View())["layout"]["meta"]["empty"] == sentence


def test_the_share_beside_a_line_is_that_of_the_newest_sample() -> None:
    """The label beside a line shows the share of the newest sample, however many samples share the last column."""
    samples = [{0: 10}] * 999 + [{0: 5, -20: 5}]
    figure = fate([_sampled("a", 0, samples)], View(width=500))
    words = [each["text"] for each in figure["layout"]["annotations"]]
    assert words == ["\u2068a\u2069 50\u202f%", "\u2068a\u2069 0\u202f%"]


@pytest.mark.parametrize("name", COMPARED)
def test_a_run_of_which_nothing_is_in_view_is_named(name: str) -> None:
    """The caption names each run with nothing in view and says why."""
    own = UserSteps(np.array([0, 9]), np.array([0, 9]))
    some, other = (_sampled(word, index, [{0: 9}] * 9) for index, word in enumerate(("a", "b")))
    late = _sampled("c", 2, [{0: 9}])
    with_own = [replace(run, source=replace(run.source, user=own)) for run in (some, late)]
    none = Source(made.empty(), made.no_gradients(), logged=("loss",))
    ownless = replace(other, source=none)  # as it is read where there are none

    caption = COMPARED[name]([*with_own, ownless], View(3, 9, x="user"))["layout"]["meta"][
        "caption"
    ]
    what = {"fate": "sample", "logged": "value"}.get(name, "step")
    assert caption.endswith(
        f" Not drawn, because they logged no step: \u2068b\u2069. Not drawn, because they have no {what} in view: "
        "\u2068c\u2069."
    )
    assert "Not drawn" not in COMPARED[name]([some, other], View())["layout"]["meta"]["caption"]
    meta = COMPARED[name]([ownless], View(x="user"))["layout"]["meta"]
    assert meta["empty"] == NO_USER_STEPS


def test_scales_without_a_power_of_two_are_named() -> None:
    """At the end of its line, a dead scale and an infinite one are named."""
    figure = scale(runs([1.0], [2.0**-140], [math.inf]), View())
    ends = [label["text"].rpartition(" ")[2] for label in figure["layout"]["annotations"]]
    assert ends == ["dead", "2<sup>0</sup>", "∞"]


@pytest.mark.parametrize("x", ["step", "time"])
def test_hovering_a_scale_says_of_which_run_and_step(x: Any) -> None:
    """A hover shows the run's full name and the step of the point."""
    (line,) = scale(runs([4.0] * 3 + [8.0] * 3), View(x=x))["data"]
    assert (
        line["hovertemplate"] == "%{text}, step %{customdata:,d}"
    )  # no <extra>: it would take the name's place
    assert (line["name"], line["hoverlabel"]) == ("\u2068run 0\u2069", {"namelength": -1})
    assert made.read(line["customdata"]).tolist() == list(range(6))


def test_a_phone_has_a_legend_in_the_place_of_labels() -> None:
    """A narrow plot has a legend instead of labels, and neither with more than four runs."""
    for number, shown in ((2, True), (4, True), (5, False), (8, False)):
        layout = scale(runs(*[[1.0] * 3] * number), View(width=320))["layout"]
        assert (layout["showlegend"], layout["annotations"]) == (shown, [])
        assert layout["margin"]["t"] < 100


def _logged(
    values: dict[str, list[float]], smooth: int | None = None, y: Any = "linear", **keys: Any
) -> Figure:
    """The chart of runs that logged these values at every step. The first run is the baseline."""
    found = []
    for index, (name, of) in enumerate(values.items()):
        step = np.arange(len(of))
        cells = made.logged(step, made.START + step, np.array(of))
        run = Compared(name, index, Source(made.empty(), made.no_gradients(), logged=("loss",)))
        source = replace(run.source, scalars={"loss": cells})
        more = keys if index else {"band": band(cells)}
        found.append(replace(run, source=source, **more))
    return logged(found, View(smooth=smooth, y=y))


def test_logged_values_of_runs_are_drawn_as_they_are_or_as_running_medians() -> None:
    """Values are drawn with gaps where not finite. Smoothed, a running median is drawn and the values are faint."""
    values = [1.0, 9.0, 1.0, 1.0, np.nan, 1.0, 2.0, 1.0]
    (line,) = _logged({"a": values})["data"]
    np.testing.assert_array_equal(made.read(line["y"]), values)
    faint, line = _logged({"a": values}, smooth=5)["data"]
    np.testing.assert_array_equal(made.read(faint["y"]), values)
    assert faint["opacity"] < 0.5
    assert [each for each in made.read(line["y"]) if np.isfinite(each)] == [1.0] * 7
    many = _logged({str(index): values for index in range(COLOURS + 1)})["data"]
    assert np.nanmax([made.read(each["y"]) for each in many if each["mode"] == "lines"]) == 1
    assert len(_logged({"a": [1.0] * LONG})["data"]) == 3  # the band, and a faint line besides


def test_a_run_whose_newest_value_is_not_finite_is_labelled_so() -> None:
    """A run whose newest value is not finite is labelled so, where its line ends."""
    (label,) = _logged({"a": [1.0, 2.0, np.nan]})["layout"]["annotations"]
    assert (label["text"], label["y"]) == ("\u2068a\u2069 not finite", 2.0)


def test_the_band_of_the_baseline_and_where_a_run_leaves_it_are_marked() -> None:
    """The baseline's band has the baseline's colour, and a circle marks the step where another run leaves it."""
    flat = [1.0 + 0.01 * (step % 5) for step in range(100)]
    risen = [*flat[:50], *[2.0] * 50]
    figure = _logged({"a": flat, "b": risen}, left=Departure(50, made.START + 50, "above", 99))
    shade, _, _, circle = figure["data"]
    assert (shade["fill"], shade["fillcolor"]) == ("toself", "role:run-1")
    assert (made.read(circle["x"]).tolist(), made.read(circle["y"]).tolist()) == ([50], [2.0])
    assert circle["text"] == ["above the baseline's band from step 50 on"]
    assert circle["marker"]["color"] == "role:run-2"
    assert "A circle marks where a run leaves it." in figure["layout"]["meta"]["caption"]


def test_values_that_are_not_above_0_are_not_on_a_log_axis() -> None:
    """On a log axis, values of 0 and below affect neither the range nor the labels."""
    figure = _logged({"a": [0.0, 1.0, 100.0], "b": [-1.0, 0.0, 0.0]}, y="log")
    assert figure["layout"]["yaxis"]["type"] == "log"
    low, high = figure["layout"]["yaxis"]["range"]
    assert -1 < low < 0
    assert 2 < high < 3
    assert [each["text"] for each in figure["layout"]["annotations"]] == ["\u2068a\u2069 100"]


@pytest.mark.parametrize("name", COMPARED)
def test_twenty_runs_have_lines_and_labels_of_their_own(name: str) -> None:
    """Twenty runs have distinct lines, and their labels neither overlap nor leave the plot."""
    every = [_sampled(f"run {index}", index, [{0: 10, -20: 3}] * 9) for index in range(RUNS_MAX)]
    assert len({str(run.line) for run in every}) == RUNS_MAX
    figure = COMPARED[name](every, View())
    layout = figure["layout"]
    of_axis: dict[str, list[float]] = {}
    for label in layout["annotations"]:
        of_axis.setdefault(label["yref"], []).append(label["y"])
    for axis, heights in of_axis.items():
        of = layout["yaxis" + axis[1:]]
        low, high = of["range"]
        bottom, top = of.get("domain", (0, 1))
        pixels = (layout["height"] - 48) * (top - bottom)
        assert len(heights) == RUNS_MAX
        assert min(np.diff(sorted(heights))) * pixels / (high - low) >= 15
        assert low <= min(heights) <= max(heights) <= high
