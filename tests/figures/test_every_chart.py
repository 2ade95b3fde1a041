"""Properties of every chart: valid for Plotly and JSON, described, small, and coloured by roles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import orjson
import plotly.graph_objects as go
import pytest
from hypothesis import given, note

import made_series as made
from ampmon_server.charts import FIGURES, Source, View
from ampmon_server.charts.compared import COMPARED
from ampmon_server.charts.parts.layout import MARGIN_LEFT, MARGIN_RIGHT
from ampmon_server.charts.parts.roles import resolve
from ampmon_server.charts.parts.source import Position
from ampmon_server.charts.together import Compared
from ampmon_server.model.aggregates.merging import Cells
from shared_roles import GROUNDS, ROLES, SHARED, named


POINTS_MAX = 8
BY_STEP = [name for name in FIGURES if name not in made.OWN_AXIS]


def drawn(source: Source, view: View) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every chart for one example, which takes longer to make than to draw, and note its name for a failure."""
    for name, draw in FIGURES.items():
        note(name)
        yield name, draw(source, view)


@made.SOME
@given(source=made.sources(), view=made.views())
def test_every_chart_is_valid_plain_described_small_and_in_the_themes_colours(
    source: Source, view: View
) -> None:
    """Every chart of any series and view passes Plotly's validation and the four checks below."""
    assert view.columns <= 1000
    for name, figure in drawn(source, view):
        go.Figure(resolve(figure, ROLES["dark"]))  # raises if Plotly finds a fault
        check_json(figure)
        check_words(figure)
        check_points(figure, view)
        check_colours(name, figure)


def check_json(figure: dict[str, Any]) -> None:
    """Check that strict JSON can hold the chart and that both encoders agree."""
    assert json.loads(json.dumps(figure, allow_nan=False)) == orjson.loads(orjson.dumps(figure))


def check_words(figure: dict[str, Any]) -> None:
    """Check that there is a title, definitions, and a caption if something is drawn, else a reason."""
    meta = figure["layout"]["meta"]
    assert meta["title"]
    assert all(meta["definitions"].values())
    assert bool(figure["data"]) == ("caption" in meta) == ("empty" not in meta)


def check_points(figure: dict[str, Any], view: View) -> None:
    """Check that no trace has more than POINTS_MAX points per pixel column."""
    points = [made.read(t["x"]).size for t in figure["data"] if t["type"] != "heatmap"]
    assert max(points, default=0) <= POINTS_MAX * view.columns


def check_colours(name: str, figure: dict[str, Any]) -> None:
    """Check that both themes have each role of the chart, and that its marks use roles known to be distinct."""
    for theme in ROLES.values():
        assert theme.keys() >= set(named(figure))
    # Text on a shape need not be distinct from other colours.
    shapes = [{**each, "label": None} for each in figure["layout"].get("shapes", [])]
    assert {*SHARED[name], *GROUNDS} >= set(named([figure["data"], shapes]))


def test_a_name_that_begins_like_a_role_stays_a_name() -> None:
    """Logged values, parameters and modules whose name begins with "role:" keep that name in every chart."""
    name = "role:attacker"
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    source = made.source(made.updates([1.0] * 5), at, made.modules({name: {0: 1}}))
    assert source.parameters is not None
    named = replace(
        source,
        scalars={name: source.scalars["loss"]},
        logged=[name],
        parameters=replace(source.parameters, names=(name, "role:")),
    )
    charts = {
        key: resolve(draw(named, View(parameter=name)), ROLES["light"])
        for key, draw in FIGURES.items()
    }
    having = {key for key, figure in charts.items() if name in json.dumps(figure)}
    assert having >= {"scalars", "parameters", "activations"}


def test_an_unknown_role_is_an_error() -> None:
    """A role that no theme defines raises a KeyError."""
    with pytest.raises(KeyError, match="mauve"):
        resolve({"color": "role:mauve"}, ROLES["light"])


@pytest.mark.parametrize("name", BY_STEP)
def test_the_same_step_stands_at_the_same_place_in_every_chart(name: str) -> None:
    """All charts along steps have the same margins and the same x range."""
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    of = made.source(made.updates([1.0] * 50), at)
    layout = FIGURES[name](of, View(parameter=made.PARAMETER))["layout"]
    assert layout["xaxis"]["range"] == [-0.5, 49.5]
    assert (layout["margin"]["l"], layout["margin"]["r"]) == (MARGIN_LEFT, MARGIN_RIGHT)


@pytest.mark.parametrize("name", BY_STEP)
def test_a_zoom_is_distinguished_from_the_next(name: str) -> None:
    """`uirevision` stays the same when a view is refreshed, and changes with the view."""
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    before, after = (
        made.source(made.updates([1.0] * 50), at),
        made.source(made.updates([1.0] * 60), at),
    )
    first, second = (View(0, stop, parameter=made.PARAMETER) for stop in (9, 10))
    revisions = [
        FIGURES[name](of, view)["layout"]["uirevision"]
        for of, view in ((before, first), (after, first), (after, second))
    ]
    assert revisions[0] == revisions[1] != revisions[2]


def test_time_is_drawn_as_dates() -> None:
    """With x="time", x is in ms since the epoch on a date axis."""
    figure = FIGURES["scale"](made.source(made.updates([1.0, 1.0])), View(x="time"))
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert made.read(figure["data"][0]["x"]).tolist() == [
        made.START / 1000,
        made.START / 1000 + 100,
    ]


@pytest.mark.parametrize(("zone", "name"), [(0, "UTC"), (330, "UTC+5:30"), (-180, "UTC−3")])
def test_the_axis_of_times_names_the_zone_that_is_asked_for(zone: int, name: str) -> None:
    """A zone changes nothing but its name on the axis and in the meta data. The page moves the times to it."""
    source = made.source(made.updates([1.0] * 90)[[*range(40), *range(60, 90)]])  # with a gap
    for draw in FIGURES.values():
        unnamed, there = (
            draw(source, View(x="time", zone=each, parameter=made.PARAMETER))
            for each in (None, zone)
        )
        if "xaxis" not in unnamed["layout"] or unnamed["layout"]["xaxis"].get("type") != "date":
            continue
        axis = there["layout"]["xaxis"]
        assert axis["title"]["text"] == f"time ({name})"
        assert axis["unifiedhovertitle"]["text"].endswith(f" {name}")
        assert unnamed["layout"]["xaxis"]["title"]["text"] == "local time"
        for key in ("title", "unifiedhovertitle"):
            axis[key] = unnamed["layout"]["xaxis"][key]
        assert there["layout"]["meta"].pop("zone") == zone
        assert there == unnamed


def test_a_time_has_its_date_in_a_window_of_more_than_a_day() -> None:
    """Two updates two days apart are distinguished on hover, and those of a second need no date."""
    near = made.updates([1.0, 1.0])
    far = near.copy()
    for name in ("time_first", "time_last", "time_min", "time_max"):
        far[name][1] += 2 * 86_400 * 10**6
    for cells, title in ((near, "%{x|%X} UTC"), (far, "%{x|%Y-%m-%d %X} UTC")):
        axis = FIGURES["scale"](made.source(cells), View(x="time", zone=0))["layout"]["xaxis"]
        assert axis["unifiedhovertitle"]["text"] == title


def since(cells: Cells, started: int) -> Cells:
    """Return a copy of cells with times since ``started``."""
    moved = cells.copy()
    for name in cells.dtype.names or ():
        if "time" in name and name != "timed":
            moved[name] -= started
    return moved


@pytest.mark.parametrize("back", [3_600_000_000, 700_000])
def test_the_newest_is_that_of_the_last_step_if_the_clock_was_set_back(back: int) -> None:
    """By time, the newest scale, headroom and norm are those by step, even if the clock was set back between."""
    n = 40
    scales = [2.0**10] * 26 + [2.0**12] * 14
    totals = made.totals(made.histograms([{-step: 9} for step in range(n)]), [0] * n)
    totals = replace(totals, sum_squares=4.0 ** np.arange(n), amax=2.0 ** -np.arange(n))
    both = made.updates(scales), made.gradients(list(range(n)), totals, scales=scales)
    early, late = (np.concatenate([each[:20], since(each[20:], back)]) for each in both)
    source = made.source(early, late)

    scale, exponents, norm = (
        FIGURES[name](source, View(x="time"))["layout"]["meta"]["caption"]
        for name in ("scale", "exponents", "norm")
    )
    assert scale.startswith("4\u202f096 = 2¹² after step 39.")
    assert "At the newest scale fp16 holds magnitudes from 2⁻³⁶" in exponents
    # Of steps before the clock was set back, the headroom is below 36 bits and the norm below 2^10.
    assert float(re.findall(r"newest samples?: (\S+) bits", scale)[0]) > 35.9
    assert float(re.findall(r"(\S+) (?:in|at) the newest", norm)[0]) >= 2.0**10
    compared = COMPARED["scale"]([Compared("run", 0, source, made.START)], View(x="time"))
    (label,) = compared["layout"]["annotations"]
    assert label["text"].endswith("2<sup>12</sup>")


@pytest.mark.parametrize("width", [100, 358, 620, 1100])
def test_dates_have_room_to_stand_upright(width: int) -> None:
    """Date labels are horizontal and have at least 80 pixels each, at any width."""
    layout = FIGURES["scale"](made.source(made.updates([1.0, 1.0])), View(x="time", width=width))[
        "layout"
    ]
    room = width - layout["margin"]["l"] - layout["margin"]["r"]
    assert layout["xaxis"]["tickangle"] == 0
    assert 1 <= layout["xaxis"]["nticks"] <= max(1, room / 80)


@pytest.mark.parametrize("name", BY_STEP)
def test_a_million_updates_are_as_small_as_a_thousand(name: str) -> None:
    """The size of a chart does not grow with the length of the run."""
    short, long = (
        len(orjson.dumps(FIGURES[name](steady(n, span), View(parameter=made.PARAMETER))))
        for n, span in ((2_000, 2), (1_000_000, 1024))
    )
    assert long < 3 * short + 100_000


@cache
def steady(n: int, span: int) -> Source:
    """A run of ``n`` updates in cells of ``span``, with a sample every 200 updates."""
    series = made.rolled_up(np.tile([1.0, 2.0], n // 2), skipped_every=7, span=span)
    hist = made.histograms([{0: 10, -20: 3}] * (n // 200))
    at = made.gradients(list(range(0, n, 200)), made.totals(hist, [1] * (n // 200)))
    return made.source(series, at)


def test_ticks_of_a_short_run_are_steps() -> None:
    """A run with fewer steps than ticks has one tick per step."""
    few, many = (FIGURES["scale"](made.source(made.updates([1.0] * n)), View()) for n in (1, 50))
    assert few["layout"]["xaxis"]["dtick"] == 1
    assert "dtick" not in many["layout"]["xaxis"]


@pytest.mark.parametrize("name", ["scale", "skips", "scalars", "underflow"])
@pytest.mark.parametrize("width", [1200, 360])
def test_a_chart_in_the_stack_is_low_and_the_last_has_the_axis(name: str, width: int) -> None:
    """Stacked charts are lower, only the last shows step labels, and all have the same x range and side margins."""
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    of = made.source(made.updates([1.0] * 50), at)
    layouts = {
        where: FIGURES[name](of, View(width=width, position=where, parameter=made.PARAMETER))[
            "layout"
        ]
        for where in get_args(Position)
    }
    alone, stacked, last = (layouts[where] for where in ("alone", "stacked", "last"))
    assert stacked["height"] < last["height"] < alone["height"]
    assert last["height"] <= 220
    assert (stacked["xaxis"]["showticklabels"], "showticklabels" in last["xaxis"]) == (False, False)
    assert {tuple(each["xaxis"]["range"]) for each in layouts.values()} == {(-0.5, 49.5)}
    assert not stacked["showlegend"]
    assert {(each["margin"]["l"], each["margin"]["r"]) for each in layouts.values()} == {
        (alone["margin"]["l"], alone["margin"]["r"])
    }
