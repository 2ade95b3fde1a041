"""What holds of every chart: Plotly takes it, JSON can carry it, it has words, and its colours are roles."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import orjson
import plotly.graph_objects as go
import pytest
from hypothesis import given, note

import made_series as made
from ampmon_server.figures import APART, FIGURES, Source, View, resolve
from ampmon_server.figures.layout import MARGIN_LEFT, MARGIN_RIGHT
from shared_roles import GROUNDS, ROLES, SHARED, named


POINTS_MAX = 8
BY_STEP = [name for name in FIGURES if name not in APART]


def drawn(source: Source, view: View) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every chart of one example, which takes longer to make than to draw; one that fails is named."""
    for name, draw in FIGURES.items():
        note(name)
        yield name, draw(source, view)


@made.SOME
@given(source=made.sources(), view=made.views())
def test_plotly_takes_every_chart(source: Source, view: View) -> None:
    """With the roles resolved, Plotly's own validation finds nothing wrong with a chart of any series."""
    for _, figure in drawn(source, view):
        go.Figure(resolve(figure, ROLES["dark"]))


@made.SOME
@given(source=made.sources(), view=made.views())
def test_json_carries_every_chart(source: Source, view: View) -> None:
    """A chart is plain: strict JSON holds it, without NaN or infinity, and both encoders agree on it."""
    for _, figure in drawn(source, view):
        assert json.loads(json.dumps(figure, allow_nan=False)) == orjson.loads(orjson.dumps(figure))


@made.SOME
@given(source=made.sources(), view=made.views())
def test_a_chart_has_words_whatever_it_shows(source: Source, view: View) -> None:
    """A title and definitions always; a caption where something is drawn, a reason where nothing is."""
    for _, figure in drawn(source, view):
        meta = figure["layout"]["meta"]
        assert meta["title"]
        assert all(meta["definitions"].values())
        assert bool(figure["data"]) == ("caption" in meta) == ("empty" not in meta)


@made.SOME
@given(source=made.sources(), view=made.views())
def test_a_chart_has_few_points(source: Source, view: View) -> None:
    """No line, rug or row of bars and marks has more points than a few for each pixel column, and 1000 are the most."""
    assert view.columns <= 1000
    for _, figure in drawn(source, view):
        points = [made.read(t["x"]).size for t in figure["data"] if t["type"] != "heatmap"]
        assert max(points, default=0) <= POINTS_MAX * view.columns


@made.SOME
@given(source=made.sources(), view=made.views())
def test_colours_are_roles_that_each_theme_has(source: Source, view: View) -> None:
    """Every role that a chart names is in both themes, and what it draws with is known to be told apart."""
    for name, figure in drawn(source, view):
        for theme in ROLES.values():
            assert theme.keys() >= set(named(figure))
        # What is written on a shape is read, and not told from others.
        shapes = [{**each, "label": None} for each in figure["layout"].get("shapes", [])]
        assert {*SHARED[name], *GROUNDS} >= set(named([figure["data"], shapes]))


def test_a_name_that_begins_like_a_role_stays_a_name() -> None:
    """Of logged values, parameters and modules that are called so every chart is drawn, and has their name."""
    name = "role:attacker"
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    source = made.source(made.updates([1.0] * 5), at, made.modules({name: {0: 1}}))
    assert source.parameters is not None
    named = replace(
        source,
        scalars={name: source.scalars["loss"]},
        logged=[name],
        parameters=replace(source.parameters, names=(name, "role:"), chosen=name),
    )
    charts = {key: resolve(draw(named, View()), ROLES["light"]) for key, draw in FIGURES.items()}
    having = {key for key, figure in charts.items() if name in json.dumps(figure)}
    assert having >= {"scalars", "parameters", "activations"}


def test_an_unknown_role_is_an_error() -> None:
    """A role that no theme has is not drawn in some colour or other."""
    with pytest.raises(KeyError, match="mauve"):
        resolve({"color": "role:mauve"}, ROLES["light"])


@pytest.mark.parametrize("name", BY_STEP)
def test_the_same_step_stands_at_the_same_place_in_every_chart(name: str) -> None:
    """All charts along the steps of one view have the same margins and the same range of x."""
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    of = made.source(made.updates([1.0] * 50), at)
    layout = FIGURES[name](of, View())["layout"]
    assert layout["xaxis"]["range"] == [-0.5, 49.5]
    assert (layout["margin"]["l"], layout["margin"]["r"]) == (MARGIN_LEFT, MARGIN_RIGHT)


@pytest.mark.parametrize("name", BY_STEP)
def test_a_zoom_is_told_from_the_next(name: str) -> None:
    """A refresh of the same view keeps what the reader did to a chart; another view does not."""
    at = made.gradients([3], made.totals(made.histograms([{0: 1}]), [0]))
    before, after = (
        made.source(made.updates([1.0] * 50), at),
        made.source(made.updates([1.0] * 60), at),
    )
    revisions = [
        FIGURES[name](of, view)["layout"]["uirevision"]
        for of, view in ((before, View(0, 9)), (after, View(0, 9)), (after, View(0, 10)))
    ]
    assert revisions[0] == revisions[1] != revisions[2]


def test_time_is_drawn_as_dates() -> None:
    """Over time, x is in ms since the epoch on an axis of dates, in UTC."""
    figure = FIGURES["scale"](made.source(made.updates([1.0, 1.0])), View(x="time"))
    assert figure["layout"]["xaxis"]["type"] == "date"
    assert made.read(figure["data"][0]["x"]).tolist() == [
        made.START / 1000,
        made.START / 1000 + 100,
    ]


@pytest.mark.parametrize(("zone", "name"), [(0, "UTC"), (330, "UTC+5:30"), (-180, "UTC−3")])
def test_times_are_of_the_zone_that_is_asked_for(zone: int, name: str) -> None:
    """All that lies along x in any chart moves by as much, and the axis says which clock it is by."""
    source = made.source(made.updates([1.0, 1.0, 2.0]))
    for draw in FIGURES.values():
        utc, there = (draw(source, View(x="time", zone=each)) for each in (0, zone))
        if "xaxis" not in utc["layout"] or utc["layout"]["xaxis"].get("type") != "date":
            continue
        shift = 60_000 * zone
        axis = there["layout"]["xaxis"]
        assert axis["title"]["text"] == f"time ({name})"
        assert axis["unifiedhovertitle"]["text"].endswith(f" {name}")
        assert axis["range"] == [end + shift for end in utc["layout"]["xaxis"]["range"]]
        for here, moved in zip(utc["data"], there["data"], strict=True):
            assert (made.read(moved["x"]) - made.read(here["x"]) == shift).all()
        for here, moved in zip(utc["layout"]["shapes"], there["layout"]["shapes"], strict=True):
            if here.get("xref", "x") == "x":
                assert moved["x0"] - here["x0"] == shift


@pytest.mark.parametrize("width", [100, 358, 620, 1100])
def test_dates_have_room_to_stand_upright(width: int) -> None:
    """Each has 80 pixels of the plot at any width, and none is slanted: that would reach below the chart."""
    layout = FIGURES["scale"](made.source(made.updates([1.0, 1.0])), View(x="time", width=width))[
        "layout"
    ]
    room = width - layout["margin"]["l"] - layout["margin"]["r"]
    assert layout["xaxis"]["tickangle"] == 0
    assert 1 <= layout["xaxis"]["nticks"] <= max(1, room / 80)


@pytest.mark.parametrize("name", BY_STEP)
def test_a_million_updates_are_as_small_as_a_thousand(name: str) -> None:
    """The size of a chart does not depend on the length of the run."""
    short, long = (
        len(orjson.dumps(FIGURES[name](steady(n, span), View())))
        for n, span in ((2_000, 2), (1_000_000, 1024))
    )
    assert long < 3 * short + 100_000


@cache
def steady(n: int, span: int) -> Source:
    """A run of ``n`` updates in cells of ``span``, of which one in two hundred is sampled."""
    series = made.rolled_up(np.tile([1.0, 2.0], n // 2), skipped_every=7, span=span)
    hist = made.histograms([{0: 10, -20: 3}] * (n // 200))
    at = made.gradients(list(range(0, n, 200)), made.totals(hist, [1] * (n // 200)))
    return made.source(series, at)


def test_ticks_of_a_short_run_are_steps() -> None:
    """Where there are fewer steps than ticks each step has one, and nothing between them has."""
    few, many = (FIGURES["scale"](made.source(made.updates([1.0] * n)), View()) for n in (1, 50))
    assert few["layout"]["xaxis"]["dtick"] == 1
    assert "dtick" not in many["layout"]["xaxis"]
