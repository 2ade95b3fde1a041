"""The heatmap of parameters: rows, columns, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import made_series as made
from ampmon.numerics.histogram import BINS
from ampmon_server.charts import ParameterSource, Source, View
from ampmon_server.charts.parameters import CELLS_MAX, FAR, parameters
from ampmon_server.charts.parts.rows import ROWS_MAX
from ampmon_server.model.parameter_statistics import STATISTICS


def _drawn(of: ParameterSource, view: View | None = None) -> dict:  # type: ignore[type-arg]
    steps = int(of.cells["last"].max()) + 1
    source = made.source(made.updates([1.0] * steps))
    return parameters(Source(source.updates, source.gradients, parameters=of), view or View())


def _of(subnormal: np.ndarray, **fields: object) -> ParameterSource:
    """Samples one step apart of parameters with 100 elements: ``subnormal`` [m, n] are subnormal, the others zero."""
    histogram = np.zeros((*subnormal.shape, BINS), np.int64)
    histogram[..., 20] = subnormal
    step = np.arange(len(subnormal))
    looked = np.full(subnormal.shape, 100)
    amax = np.full(subnormal.shape, 2.0**-10)
    return made.parameters(step, made.START + step * 100_000, histogram, looked, amax, **fields)


def test_a_row_is_a_parameter_and_a_column_a_sample() -> None:
    """Rows are the parameters in model order from the top, with a share for each sample."""
    figure = _drawn(_of(np.array([[1, 50], [2, 0], [3, 25]])))
    (heatmap,) = figure["data"]
    assert heatmap["y"] == ["blocks.0.part.0.weight", "blocks.0.part.1.weight"]
    assert np.allclose(made.read(heatmap["z"]), [[0.01, 0.02, 0.03], [0.5, 0, 0.25]])
    assert made.read(heatmap["x"]).tolist() == [0, 1, 2]
    assert figure["layout"]["yaxis"]["autorange"] == "reversed"


def test_a_column_shows_the_worst_of_its_samples() -> None:
    """A column shows the worst of its samples, even if one in a thousand lost everything."""
    subnormal = np.zeros((1000, 3), np.int64)
    subnormal[417, 1] = 100
    figure = _drawn(_of(subnormal), View(width=320))
    z = made.read(figure["data"][0]["z"])
    assert z.shape[1] <= 320 // 8
    assert z.max(1).tolist() == [0, 1, 0]
    assert "samples share a column, which shows the worst" in figure["layout"]["meta"]["caption"]


def test_of_many_parameters_those_that_lose_most_are_drawn() -> None:
    """Of many parameters only the ROWS_MAX that lose most are drawn, and the caption counts the others."""
    subnormal = np.zeros((1, ROWS_MAX + 50), np.int64)
    subnormal[0, 30:] = 60
    histogram = np.zeros((1, ROWS_MAX + 50, BINS), np.int64)
    histogram[..., 20] = subnormal
    histogram[..., 35] = 100 - subnormal
    step = np.zeros(1, np.int64)
    looked = np.full(subnormal.shape, 100)
    amax = np.ones(subnormal.shape)
    of = made.parameters(step, step + made.START, histogram, looked, amax)
    figure = _drawn(of, View(level="parameter"))
    names = figure["data"][0]["y"]
    assert names == list(of.names[30 : 30 + ROWS_MAX])
    assert (
        "Not drawn, because they lose less: 50 parameters." in figure["layout"]["meta"]["caption"]
    )


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("subnormal", 0.25), ("zero", 0.75), ("on_grid", 1.0), ("headroom", 26.0), ("norm", -1.5051)],
)
def test_each_statistic_has_its_value(statistic: str, value: float) -> None:
    """Each statistic shows its value for a known parameter."""
    figure = _drawn(_of(np.array([[25]])), View(statistic=statistic))
    assert made.read(figure["data"][0]["z"])[0, 0] == pytest.approx(value, abs=1e-3)
    assert set(STATISTICS) == {"subnormal", "zero", "headroom", "norm", "on_grid"}


def test_a_shard_is_named() -> None:
    """The caption names the rank whose shard is shown."""
    caption = _drawn(_of(np.array([[25]]), shard=3))["layout"]["meta"]["caption"]
    assert caption.endswith("Shows the shard of rank 3.")


@made.SOME
@given(made.sources(), made.views())
def test_rows_and_columns_stay_few(source: Source, view: View) -> None:
    """The heatmap has at most ROWS_MAX rows and a bounded number of columns.

    A gap in the records adds two empty columns between two others.
    """
    for heatmap in parameters(source, view)["data"]:
        rows, columns = made.read(heatmap["z"]).shape
        assert rows == len(heatmap["y"]) <= ROWS_MAX
        assert columns <= 3 * (view.columns // 8) - 2


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["0.weight", "0.bias", "2.weight"], ["0.weight", "0.bias", "2.weight"]),
        (
            ["wte.weight", *(f"transformer.h.{row // 12}.attn.{row}" for row in range(48))],
            ["h.0", "h.1", "h.2", "h.3"],
        ),
        (["classifier.weight", "classifier.bias"], ["classifier"]),
        (
            ["critic.0.bias", "generator.0.bias", "generator.2.bias", "b"],
            ["c…0.bias", "g…0.bias", "g…2.bias", "b"],
        ),
        (
            ["actor.0.weight", "actor.10.weight", "critic.0.weight", "critic.10.weight"],
            ["a…0.weight", "a…10.weigh", "c…0.weight", "c…10.weigh"],
        ),
        (
            ["netG.main.0.weight", "netD.main.0.weight", "actor.0.weight"],
            ["G…0.weight", "D…0.weight", "r…0.weight"],
        ),
        (["att.q.weight", "att.q.bias", "a.bias"], ["q.weight", "q.bias", "a.bias"]),
        (
            [f"Sequential{row // 24 or ''}.{row // 12 % 2}.{row}" for row in range(48)],
            ["…uential.0", "…uential.1", "…ential1.0", "…ential1.1"],
        ),
    ],
)
def test_rows_are_labelled_by_block_where_there_is_no_room(
    names: list[str], labels: list[str]
) -> None:
    """Few rows are labelled by parameter; many rows have one label per block."""
    of = replace(_of(np.ones((1, len(names)), np.int64)), names=tuple(names))
    axis = _drawn(of)["layout"]["yaxis"]
    shown = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    assert [shown[name] for name in names if name in shown] == labels


def test_every_statistic_is_offered() -> None:
    """The chart offers every statistic as a choice and marks the current one."""
    choice = _choices(_of(np.array([[25]])), View(statistic="zero"))["statistic"]
    assert choice["chosen"] == "zero"
    assert [value for value, _ in choice["options"]] == [*STATISTICS]


def _choices(of: ParameterSource, view: View | None = None) -> dict:  # type: ignore[type-arg]
    return {each["name"]: each for each in _drawn(of, view)["layout"]["meta"]["choices"]}


def test_parameters_that_do_not_fit_share_the_rows_of_their_modules() -> None:
    """Too many parameters are grouped by block with the worst value of each. Every parameter can be chosen instead."""
    subnormal = np.zeros((2, 480), np.int64)
    subnormal[1, 13] = 40
    of = _of(subnormal)
    figure = _drawn(of)
    (heatmap,) = figure["data"]
    assert heatmap["y"] == [f"blocks.{block}" for block in range(40)]
    assert made.read(heatmap["z"])[:3].tolist() == [[0, 0], [0, np.float32(0.4)], [0, 0]]
    meta = figure["layout"]["meta"]
    assert meta["opens"][1] == ("search", "blocks.1.*")
    assert "Each row shows the worst of a block: 40 rows." in meta["caption"]
    assert _choices(of)["group"]["options"] == [
        ["parameter", "each parameter (480)"],
        ["block", "the worst of each block (40)"],
    ]
    assert len(_drawn(of, View(level="parameter"))["data"][0]["y"]) == ROWS_MAX


@pytest.mark.parametrize(
    ("statistic", "value"), [("subnormal", 0.4), ("headroom", 0.0), ("on_grid", 0.5)]
)
def test_a_row_of_several_parameters_is_the_worst(statistic: str, value: float) -> None:
    """A row of several parameters has the worst sampled value: most lost, least headroom, or least on the grid."""
    of = _of(np.array([[10, 40, 0]]))
    of.cells["amax"][0] = [1.0, 65504.0, np.nan]
    of.cells["on_grid_min"][0] = [1.0, 0.5, np.nan]
    z = made.read(_drawn(of, View(statistic=statistic, level="block"))["data"][0]["z"])
    assert z.shape == (1, 1)
    assert z[0, 0] == pytest.approx(value, abs=1e-6)


def test_a_click_on_a_row_opens_its_parameter() -> None:
    """A click on the row of a parameter opens that parameter by its unescaped name."""
    of = replace(_of(np.array([[1, 2]])), names=("<b>&amp;", "a.b"))
    figure = _drawn(of)
    assert figure["data"][0]["y"] == ["&lt;b&gt;&amp;amp;", "a.b"]
    assert figure["layout"]["meta"]["opens"] == [("parameter", "<b>&amp;"), ("parameter", "a.b")]


def test_blocks_are_set_apart() -> None:
    """Lines separate the blocks of a model, unless each row is a block."""
    of = _of(np.ones((1, 36), np.int64))
    assert [line["y0"] for line in _drawn(of)["layout"]["shapes"]] == [11.5, 23.5]
    assert _drawn(of, View(level="block"))["layout"]["shapes"] == []


def test_a_search_that_finds_nothing_says_so_and_can_be_changed() -> None:
    """A search without results says so and keeps its field and text."""
    meta = _drawn(_of(np.zeros((1, 0), np.int64)), View(search="lstm"))["layout"]["meta"]
    assert meta["empty"] == "No parameter matches 'lstm'. Search for part of a name."
    assert [(each["name"], each["chosen"]) for each in meta["choices"]] == [("search", "lstm")]


@pytest.mark.parametrize("parameters_", [1, 300, 1500])
def test_an_answer_is_small(parameters_: int) -> None:
    """A heatmap has at most CELLS_MAX values in 100 kB, however many parameters and samples there are."""
    of = _of(np.ones((130, parameters_), np.int64))
    heatmap = _drawn(of)["data"][0]
    assert made.read(heatmap["z"]).size <= CELLS_MAX
    assert len(heatmap["z"]["bdata"]) <= 100_000


@pytest.mark.parametrize(
    ("statistic", "before", "after"),
    [("subnormal", 0.031, 0.049), ("headroom", 2.0**-10, 2.0**-9), ("norm", 0.011, 0.09)],
)
def test_the_colours_of_a_chart_do_not_move_with_each_sample(
    statistic: str, before: float, after: float
) -> None:
    """A value slightly larger than all before does not change the colour range."""
    field = STATISTICS[statistic].stored
    axes = []
    for value in (before, after):
        of = _of(np.array([[1]]))
        of.cells[field] = value
        axes.append(_drawn(of, View(statistic=statistic))["layout"]["coloraxis"])
    assert (axes[0]["cmin"], axes[0]["cmax"]) == (axes[1]["cmin"], axes[1]["cmax"])


@pytest.mark.parametrize(
    ("statistic", "ends", "said"),
    [
        ("norm", (-2.0, 1.0), ["10^-2.00", "0", "10^0.70", "∞"]),
        ("headroom", (8.0, 24.0), ["22.6 bits", "∞", "13.7 bits", "−∞"]),
    ],
)
def test_nothing_and_an_overflow_do_not_blind_the_colours(
    statistic: str, ends: tuple[float, float], said: list[str]
) -> None:
    """Zeros and infinities do not affect the colour range. They take its end colours, and the hover names them."""
    of = _of(np.ones((1, 4), np.int64))
    of.cells[STATISTICS[statistic].stored] = [0.01, 0.0, 5.0, np.inf]
    figure = _drawn(of, View(statistic=statistic))
    (heatmap,), axis = figure["data"], figure["layout"]["coloraxis"]
    assert (axis["cmin"], axis["cmax"]) == ends
    z = made.read(heatmap["z"])[:, 0]
    assert sorted([z[1], z[3]]) == [-FAR, FAR]
    assert [row[0] for row in heatmap["text"]] == said
    assert f"%{{text}} {STATISTICS[statistic].word}" in heatmap["hovertemplate"]


@made.SOME
@given(made.sources(), made.views())
def test_each_row_has_what_a_click_on_it_opens(source: Source, view: View) -> None:
    """Each row opens something different on a click."""
    figure = parameters(source, view)
    for heatmap in figure["data"]:
        opens = figure["layout"]["meta"]["opens"]
        assert len(opens) == len(heatmap["y"]) == len(set(opens))
