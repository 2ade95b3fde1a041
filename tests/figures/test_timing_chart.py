"""The chart of the time per step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.timing import timing
from ampmon_server.model.aggregates.updates import ROWS, of_rows


def _source(seconds: list[float], memory: list[int]) -> Source:
    """Updates with these durations; a negative one is unknown."""
    rows = np.zeros(len(seconds), ROWS)
    rows["step"] = np.arange(len(seconds))
    rows["time"] = made.START + 100_000 * rows["step"]
    rows["duration_ns"] = np.rint(np.array(seconds) * 1e9)
    rows["memory_peak"] = memory
    rows["scale"] = rows["scale_after"] = 1.0
    return made.source(of_rows(rows))


def _caption(figure: dict[str, Any]) -> str:
    return str(figure["layout"]["meta"]["caption"])


def test_a_column_has_its_mean_and_its_longest() -> None:
    """If updates share a column, the line is their mean and the band reaches to the longest."""
    figure = timing(_source([0.1, 0.3] * 200, [-1] * 400), View(width=200))
    (line,) = made.traces(figure, name="time per step")
    (band,) = made.traces(figure, name="to the longest")
    assert np.allclose(made.read(line["y"]), 0.2)
    assert np.allclose(np.unique(made.read(band["y"])), [0.2, 0.3])
    assert line["text"][0] == "steps 0 – 1: 200\u202fms<br>the longest 300\u202fms"
    assert figure["layout"]["meta"]["caption"] == (
        "200\u202fms per step on average, 300\u202fms at most. Peak memory is unknown: only CUDA devices report it."
    )


def test_the_axis_ends_above_the_longest_step() -> None:
    """If a thousand updates share a column, the axis ends above the longest of them, not above their sum."""
    figure = timing(_source([0.1, 0.3] * 100_000, [-1] * 200_000), View(width=200))
    low, high = (10**end for end in figure["layout"]["yaxis"]["range"])
    assert 0.1 < low < 0.2
    assert 0.3 < high < 0.5


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3e-7, "300\u202fns"),
        (0.0009996, "1\u202fms"),
        (0.9996, "1\u202fs"),
        (1234, "1\u202f230\u202fs"),
        (5000, "1.39\u202fh"),
        (319_680, "3.7\u202fd"),
    ],
)
def test_times_have_a_unit_of_their_size(seconds: float, words: str) -> None:
    """A step of nanoseconds or of days is shown in three digits of its unit, without an exponent."""
    figure = timing(_source([-1, seconds, 2 * seconds], [-1] * 3), View())
    (line,) = made.traces(figure, name="time per step")
    assert line["text"][0] == f"step 1: {words}"
    said = [_caption(figure), *figure["layout"]["yaxis"]["ticktext"]]
    assert not any("e+" in each or "e-" in each for each in said)


def test_memory_is_drawn_where_the_device_tells_it() -> None:
    """Sampled memory peaks have their own axis from zero, and an update without a duration has no point."""
    figure = timing(_source([-1, 0.5, 0.5], [-1, 2 * 10**9, -1]), View())
    (memory,) = made.traces(figure, name="peak memory")
    assert (made.read(memory["x"]).tolist(), made.read(memory["y"]).tolist()) == ([1], [2e9])
    assert figure["layout"]["yaxis2"]["range"][0] == 0
    (line,) = made.traces(figure, name="time per step")
    assert made.read(line["x"]).tolist() == [1, 2]
    assert "At most 2\u202fGB of device memory." in figure["layout"]["meta"]["caption"]


def test_where_each_update_is_drawn_alone_the_middle_is_reported() -> None:
    """The median and the 95th percentile are given only if every update is drawn alone."""
    caption, of_columns = (
        timing(_source([each / 1000 for each in range(1, n + 1)], [-1] * n), View(width=100))
        for n in (100, 400)
    )
    assert "Median 50\u202fms, 95th percentile 95\u202fms." in _caption(caption)
    assert "Half" not in _caption(of_columns)


def test_an_update_without_a_time_is_no_zero() -> None:
    """A run whose only update has no duration says that no time is known."""
    assert "No step time:" in timing(_source([-1], [-1]), View())["layout"]["meta"]["empty"]
