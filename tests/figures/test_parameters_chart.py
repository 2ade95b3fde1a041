"""The heatmap of parameters: its rows, its columns, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import made_series as made
from ampmon.histogram import BINS
from ampmon_server.figures import STATISTICS, ParameterSource, Source, View
from ampmon_server.figures.parameters import ROWS_MAX, parameters


def _drawn(of: ParameterSource, view: View | None = None) -> dict:  # type: ignore[type-arg]
    steps = int(of.cells["last"].max()) + 1
    source = made.source(made.updates([1.0] * steps))
    return parameters(Source(source.updates, source.gradients, parameters=of), view or View())


def _of(subnormal: np.ndarray, **fields: object) -> ParameterSource:
    """Samples a step apart, each parameter of 100 elements, so many of them subnormal and the rest zero, [m, n]."""
    histogram = np.zeros((*subnormal.shape, BINS), np.int64)
    histogram[..., 20] = subnormal
    step = np.arange(len(subnormal))
    looked = np.full(subnormal.shape, 100)
    amax = np.full(subnormal.shape, 2.0**-10)
    return made.parameters(step, made.START + step * 100_000, histogram, looked, amax, **fields)


def test_a_row_is_a_parameter_and_a_column_a_sample() -> None:
    """The rows stand in the order of the model, by name, the first at the top, each with its share at each step."""
    figure = _drawn(_of(np.array([[1, 50], [2, 0], [3, 25]])))
    (heatmap,) = figure["data"]
    assert heatmap["y"] == ["blocks.0.part.0.weight", "blocks.0.part.1.weight"]
    assert np.allclose(made.read(heatmap["z"]), [[0.01, 0.02, 0.03], [0.5, 0, 0.25]])
    assert made.read(heatmap["x"]).tolist() == [0, 1, 2]
    assert figure["layout"]["yaxis"]["autorange"] == "reversed"


def test_a_column_shows_the_worst_of_its_samples() -> None:
    """One sample in a thousand that loses all is seen, wherever it is."""
    subnormal = np.zeros((1000, 3), np.int64)
    subnormal[417, 1] = 100
    figure = _drawn(_of(subnormal), View(width=320))
    z = made.read(figure["data"][0]["z"])
    assert z.shape[1] <= 320 // 8
    assert z.max(1).tolist() == [0, 1, 0]
    assert "samples share a column: the worst of them" in figure["layout"]["meta"]["caption"]


def test_of_many_parameters_those_that_lose_most_are_drawn() -> None:
    """No more rows than can be seen, and the caption says how many are left out."""
    subnormal = np.zeros((1, ROWS_MAX + 50), np.int64)
    subnormal[0, 30:] = 60
    histogram = np.zeros((1, ROWS_MAX + 50, BINS), np.int64)
    histogram[..., 20] = subnormal
    histogram[..., 35] = 100 - subnormal
    step = np.zeros(1, np.int64)
    looked = np.full(subnormal.shape, 100)
    of = made.parameters(step, step + made.START, histogram, looked, np.ones(subnormal.shape))
    figure = _drawn(of)
    names = figure["data"][0]["y"]
    assert names == list(of.names[30 : 30 + ROWS_MAX])
    assert "50 parameters that lose less left out" in figure["layout"]["meta"]["caption"]


@pytest.mark.parametrize(
    ("statistic", "value"),
    [("subnormal", 0.25), ("zero", 0.75), ("on_grid", 1.0), ("headroom", 26.0), ("norm", -1.5051)],
)
def test_each_statistic_has_its_value(statistic: str, value: float) -> None:
    """A quarter subnormal, the rest zero, all on the grid, 26 bits below 65 504, a squared norm of 2^-10."""
    figure = _drawn(_of(np.array([[25]]), statistic=statistic))
    assert made.read(figure["data"][0]["z"])[0, 0] == pytest.approx(value, abs=1e-3)
    assert set(STATISTICS) == {"subnormal", "zero", "headroom", "norm", "on_grid"}


def test_a_shard_is_named() -> None:
    """Where gradients are sharded the caption says whose shard it is."""
    caption = _drawn(_of(np.array([[25]]), shard=3))["layout"]["meta"]["caption"]
    assert caption.endswith("Of the shard of rank 3.")


@made.SOME
@given(made.sources(), made.views())
def test_rows_and_columns_stay_few(source: Source, view: View) -> None:
    """Whatever is drawn, there are as many numbers as rows and columns, and no more of either than can be seen.

    Between two columns stand two empty ones where records are missing.
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
    ],
)
def test_rows_are_labelled_by_block_where_there_is_no_room(
    names: list[str], labels: list[str]
) -> None:
    """A few rows have their names; of many each block has its own, whatever the model's parts are called."""
    of = replace(_of(np.ones((1, len(names)), np.int64)), names=tuple(names))
    axis = _drawn(of)["layout"]["yaxis"]
    shown = dict(zip(axis["tickvals"], axis["ticktext"], strict=True))
    assert [shown[name] for name in names if name in shown] == labels


def test_every_statistic_is_offered() -> None:
    """The reader can choose what is drawn, and sees what is."""
    choice = _drawn(_of(np.array([[25]]), statistic="zero"))["layout"]["meta"]["choices"][0]
    assert choice["chosen"] == "zero"
    assert [value for value, _ in choice["options"]] == [*STATISTICS]
