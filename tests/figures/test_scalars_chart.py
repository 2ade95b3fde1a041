"""The chart of logged values: exact extremes, non-finite values, and one panel per name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.scalars import scalars
from ampmon_server.model.series import UserSteps


def source(values: dict[str, np.ndarray], *, user: UserSteps | None = None) -> Source:
    """A source with these logged values, one per step."""
    cells = {}
    for name, value in values.items():
        step = np.arange(len(value))
        cells[name] = made.logged(step, made.START + step * 100_000, value)
    return Source(made.empty(), made.no_gradients(), user=user, scalars=cells)


def test_a_spike_of_one_value_in_many_is_drawn() -> None:
    """All of 20 spikes among 100,000 values are drawn at their steps, with at most four points per column."""
    value = np.ones(100_000)
    spikes = np.arange(20) * 4999 + 17
    value[spikes] = 50 + np.arange(20)
    (line,) = scalars(source({"loss": value}), View(width=400))["data"]
    y, step = made.read(line["y"]), made.read(line["customdata"])
    assert step[y >= 50].tolist() == spikes.tolist()
    assert len(y) <= 4 * 400


def test_what_is_not_finite_breaks_the_line_and_is_marked() -> None:
    """A non-finite value breaks the line, has a cross at its step, and is counted by kind in the caption."""
    value = np.array([1.0, np.nan, 3.0, np.inf, -np.inf])
    figure = scalars(source({"loss": value}), View())
    line, marks = figure["data"]
    assert np.isnan(made.read(line["y"])).tolist() == [False, True, False, True, True]
    assert made.read(marks["x"]).tolist() == [1, 3, 4]
    assert "1 NaN, 1 inf, 1 −inf" in figure["layout"]["meta"]["caption"]


def test_an_axis_without_a_number_has_no_labels() -> None:
    """If no value is finite, the crosses stand at no number."""
    lost, held = (
        scalars(source({"loss": np.array([np.nan, last])}), View())["layout"]["yaxis"]
        for last in (np.nan, 1.0)
    )
    assert lost["showticklabels"] is False
    assert "showticklabels" not in held


def test_a_value_that_never_changes_has_no_range() -> None:
    """The caption of equal values gives the value once."""
    caption = scalars(source({"lr": np.full(9, 0.5)}), View())["layout"]["meta"]["caption"]
    assert caption == "lr: 9 values, 0.5."


def test_each_name_has_a_panel_of_its_own() -> None:
    """Each name has its own panel, in order, and the x axis is below the last."""
    figure = scalars(source({"loss": np.ones(9), "lr": np.full(9, 1e-3)}), View())
    layout = figure["layout"]
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert layout["xaxis"]["anchor"] == "y2"
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y2"]


def test_values_stand_at_the_users_own_steps() -> None:
    """With x="user", points are at the user's own steps."""
    user = UserSteps(np.array([0, 8]), np.array([100, 104]))
    (line,) = scalars(source({"loss": np.ones(9)}, user=user), View(x="user"))["data"]
    assert made.read(line["x"]).min() == 100
    assert made.read(line["x"]).max() == 104


def test_where_nothing_is_logged_the_chart_says_how_to() -> None:
    """Without logged values the chart has no trace and names `ampmon.log`."""
    figure = scalars(source({}), View())
    assert figure["data"] == []
    assert "ampmon.log" in figure["layout"]["meta"]["empty"]


def test_of_many_names_the_reader_chooses() -> None:
    """With more names than panels, all are offered as a choice and the caption counts those not drawn."""
    of = source({"lr": np.ones(9)})
    names = ("loss", "lr", "accuracy", "norm", "<b>")
    meta = scalars(replace(of, logged=names), View())["layout"]["meta"]
    assert meta["choices"][0]["chosen"] == "lr"
    assert [value for value, _ in meta["choices"][0]["options"]] == ["", *names]
    assert meta["caption"].endswith("4 names not drawn.")
    (axes,) = scalars(replace(of, logged=names[:4]), View())["layout"]["meta"]["choices"]
    assert axes["name"] == "y"


def test_on_a_log_axis_what_is_not_above_zero_is_said() -> None:
    """A log axis spans the positive values, and the caption says that others are missing. Without any it is linear."""
    figure = scalars(source({"loss": np.array([100.0, 1.0, 0.0])}), View(y="log"))
    axis = figure["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert np.allclose(axis["range"], [-0.16, 2.16])
    assert "Its log axis shows only values above 0." in figure["layout"]["meta"]["caption"]
    assert figure["layout"]["meta"]["choices"][0]["chosen"] == "log"
    below = scalars(source({"loss": np.array([-1.0, -2.0])}), View(y="log"))
    assert "type" not in below["layout"]["yaxis"]


def test_in_the_stack_one_name_is_drawn() -> None:
    """In the stack one name is drawn, by choice or as the title. Without logged values the chart is absent."""
    both = replace(source({"loss": np.ones(9)}), logged=("loss", "lr"))
    drawn = scalars(both, View(position="stacked"))["layout"]
    which, how = drawn["meta"]["choices"]
    assert (which["chosen"], [value for value, _ in which["options"]]) == ("loss", ["loss", "lr"])
    assert (how["name"], drawn["annotations"]) == ("y", [])
    lone = scalars(replace(both, logged=("loss",)), View(position="stacked"))["layout"]["meta"]
    assert (lone["title"], len(lone["choices"])) == ("loss", 1)
    nothing = [scalars(source({}), View(position=at))["layout"]["meta"] for at in ("alone", "last")]
    assert [meta["absent"] for meta in nothing] == [False, True]
