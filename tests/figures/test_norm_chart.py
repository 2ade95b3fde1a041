"""The chart of the gradient's norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.norm import norm
from ampmon_server.model.aggregates.gradients import LAYOUT
from ampmon_server.model.aggregates.merging import starts_of


def _source(squares: list[float], scales: list[float]) -> Source:
    n = len(squares)
    on_grid = made.totals(made.histograms([{0: 9}] * n), [0] * n)
    on_grid = replace(on_grid, sum_squares=np.array(squares))
    return made.source(made.updates(scales), made.gradients(list(range(n)), on_grid, scales=scales))


def test_a_sample_that_overflowed_has_a_cross_and_no_norm() -> None:
    """A sample that overflowed leaves a break in the line, a cross, and a count in the caption."""
    figure = norm(_source([16.0, np.inf, np.nan, 4.0], [1.0] * 4), View())
    (line,), (marks,) = (made.traces(figure, name=each) for each in ("gradient norm", "not finite"))
    assert np.isnan(made.read(line["y"])).tolist() == [False, True, True, False, False]
    assert made.read(marks["x"]).tolist() == [1, 2]
    assert marks["text"] == [f"step {step}: 1 of 1 sample not finite" for step in (1, 2)]
    assert "2 of them not finite" in figure["layout"]["meta"]["caption"]


def test_a_single_sample_has_no_range() -> None:
    """The caption of one sample gives its norm once."""
    figure = norm(_source([16.0], [1.0]), View())
    assert figure["layout"]["meta"]["caption"] == "4 in 1 sample."


def test_samples_that_are_held_together_lie_between_the_scales_beside_them() -> None:
    """A merged cell has the norm at the geometric mean of its scales, with bounds at the smallest and largest scale."""
    source = _source([16.0, 16.0 * 16], [1.0, 4.0])
    merged = LAYOUT.merge(source.gradients, starts_of(np.zeros(2, np.int64)))
    figure = norm(replace(source, gradients=merged), View())
    (line,) = made.traces(figure, name="gradient norm")
    root = np.sqrt((16 + 256) / 2)
    caption = figure["layout"]["meta"]["caption"]
    assert caption == (
        f"Means of neighbouring samples: {root / 2:.4g} in the newest column; within {root / 4:.4g} to {root:.4g} "
        "in 2 samples."
    )
    assert np.allclose(made.read(line["y"]), root / 2)
    assert (
        line["text"][0] == f"steps 0 – 1: {root / 2:.4g}<br>between {root / 4:.4g} and {root:.4g}"
    )


def test_a_sample_that_overflowed_takes_those_with_it_that_are_one_cell() -> None:
    """A cell with a non-finite sample has no norm, and the text says that not all of its samples may be non-finite."""
    source = _source([16.0, np.inf, 16.0, 4.0], [1.0] * 4)
    merged = LAYOUT.merge(source.gradients, starts_of(np.array([0, 0, 0, 1])))
    figure = norm(replace(source, gradients=merged), View())
    (marks,) = made.traces(figure, name="not finite")
    assert marks["text"] == [
        "steps 0 – 2: 3 of 3 samples not finite, or merged with one that is not"
    ]
    assert figure["layout"]["meta"]["caption"] == (
        "Means of neighbouring samples: 2 at the newest; within 2 to 2 in 4 samples. 3 of them not finite, or merged "
        "with one that is not (crosses)."
    )


def test_samples_that_are_held_together_may_be_of_different_sides() -> None:
    """A merged cell of samples on and off fp16's grid has the mean square of all of them."""
    squares = np.array([16.0, 16.0, 4.0, 4.0, 4.0])
    sides = [
        replace(
            made.totals(made.histograms([{0: 9} if has else {} for has in there]), [0] * 5),
            sum_squares=np.where(there, squares, 0.0),
        )
        for there in (squares == 16, squares == 4)
    ]
    cells = made.gradients(list(range(5)), *sides)
    merged = LAYOUT.merge(cells, starts_of(np.zeros(5, np.int64)))
    caption = norm(made.source(made.updates([1.0] * 5), merged), View())["layout"]["meta"][
        "caption"
    ]
    assert caption.endswith(
        f"{np.sqrt(squares.mean()):.4g} to {np.sqrt(squares.mean()):.4g} in 5 samples."
    )


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [(1.092, 1.414, ["1", "1.5"]), (3.0, 3.0, ["3", "4"]), (0.3, 6.8, ["0.5", "1", "2", "5"])],
)
def test_ticks_are_round(least: float, most: float, ticks: list[str]) -> None:
    """An axis of less than a decade has round ticks too."""
    axis = norm(_source([least**2, most**2], [1.0] * 2), View())["layout"]["yaxis"]
    assert axis["ticktext"] == ticks
