"""The chart of logged values: true extremes, what is not finite, and a panel to a name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.scalars import scalars
from ampmon_server.model.series import UserSteps


def source(values: dict[str, np.ndarray], *, user: UserSteps | None = None) -> Source:
    """A run with these values at its steps."""
    cells = {}
    for name, value in values.items():
        step = np.arange(len(value))
        cells[name] = made.logged(step, made.START + step * 100_000, value)
    return Source(made.empty(), made.no_gradients(), user=user, scalars=cells)


def test_a_spike_of_one_value_in_many_is_drawn() -> None:
    """Twenty spikes among a hundred thousand values are all there, at their steps, in at most four points a column."""
    value = np.ones(100_000)
    spikes = np.arange(20) * 4999 + 17
    value[spikes] = 50 + np.arange(20)
    (line,) = scalars(source({"loss": value}), View(width=400))["data"]
    y, step = made.read(line["y"]), made.read(line["customdata"])
    assert step[y >= 50].tolist() == spikes.tolist()
    assert len(y) <= 4 * 400


def test_what_is_not_finite_breaks_the_line_and_is_marked() -> None:
    """A NaN is no point of the line; a cross stands at its step, and the caption counts each kind."""
    value = np.array([1.0, np.nan, 3.0, np.inf, -np.inf])
    figure = scalars(source({"loss": value}), View())
    line, marks = figure["data"]
    assert np.isnan(made.read(line["y"])).tolist() == [False, True, False, True, True]
    assert made.read(marks["x"]).tolist() == [1, 3, 4]
    assert "1 NaN, 1 inf, 1 −inf" in figure["layout"]["meta"]["caption"]


def test_each_name_has_a_panel_of_its_own() -> None:
    """Panels do not overlap, stand in the order of the names, and share the x axis below the last."""
    figure = scalars(source({"loss": np.ones(9), "lr": np.full(9, 1e-3)}), View())
    layout = figure["layout"]
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]
    assert layout["xaxis"]["anchor"] == "y2"
    assert [trace["yaxis"] for trace in figure["data"]] == ["y", "y2"]


def test_values_stand_at_the_users_own_steps() -> None:
    """Where x is the user's own step, so is every point's."""
    user = UserSteps(np.array([0, 8]), np.array([100, 104]))
    (line,) = scalars(source({"loss": np.ones(9)}, user=user), View(x="user"))["data"]
    assert made.read(line["x"]).min() == 100
    assert made.read(line["x"]).max() == 104


def test_where_nothing_is_logged_the_chart_says_how_to() -> None:
    """No trace, and the call that logs."""
    figure = scalars(source({}), View())
    assert figure["data"] == []
    assert "ampmon.log" in figure["layout"]["meta"]["empty"]


def test_of_many_names_the_reader_chooses() -> None:
    """With more names than panels, all are offered, which is drawn is marked, and the caption counts the others."""
    of = source({"lr": np.ones(9)})
    names = ("loss", "lr", "accuracy", "norm", "<b>")
    meta = scalars(replace(of, logged=names), View())["layout"]["meta"]
    assert meta["choices"][0]["chosen"] == "lr"
    assert [value for value, _ in meta["choices"][0]["options"]] == ["", *names]
    assert meta["caption"].endswith("4 names not drawn.")
    (axes,) = scalars(replace(of, logged=names[:4]), View())["layout"]["meta"]["choices"]
    assert axes["name"] == "y"


def test_on_a_log_axis_what_is_not_above_zero_is_said() -> None:
    """The axis spans the decades of what it can show, and the caption says that there is more."""
    figure = scalars(source({"loss": np.array([100.0, 1.0, 0.0])}), View(y="log"))
    axis = figure["layout"]["yaxis"]
    assert axis["type"] == "log"
    assert np.allclose(axis["range"], [-0.16, 2.16])
    assert "What is not above 0 is not on its log axis." in figure["layout"]["meta"]["caption"]
    assert figure["layout"]["meta"]["choices"][0]["chosen"] == "log"
    below = scalars(source({"loss": np.array([-1.0, -2.0])}), View(y="log"))
    assert "type" not in below["layout"]["yaxis"]


def test_in_the_stack_one_name_is_drawn() -> None:
    """Another is a choice away; one that is alone is the title. Where nothing is logged nothing stands in its place."""
    both = replace(source({"loss": np.ones(9)}), logged=("loss", "lr"))
    drawn = scalars(both, View(position="stacked"))["layout"]
    which, how = drawn["meta"]["choices"]
    assert (which["chosen"], [value for value, _ in which["options"]]) == ("loss", ["loss", "lr"])
    assert (how["name"], drawn["annotations"]) == ("y", [])
    lone = scalars(replace(both, logged=("loss",)), View(position="stacked"))["layout"]["meta"]
    assert (lone["title"], len(lone["choices"])) == ("loss", 1)
    nothing = [scalars(source({}), View(position=at))["layout"]["meta"] for at in ("alone", "last")]
    assert [meta["absent"] for meta in nothing] == [False, True]
