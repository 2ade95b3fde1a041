"""Gaps in the records are shaded and left empty in every chart; a clock set back is no gap."""

from __future__ import annotations

import numpy as np
import pytest

import made_series as made
from ampmon_server.charts import FIGURES, Source, View
from ampmon_server.charts.parts.window import cut


HOLE = (40, 60)
"""Steps from the first up to, but not including, the second have no record."""

BY_STEP = [name for name in FIGURES if name not in made.OWN_AXIS]


def holed(*holes: tuple[int, int], last: int = 100, every: int = 5) -> Source:
    """Updates with these gaps; every ``every``-th step is sampled."""
    whole = made.updates([1024.0] * last)
    kept = [step for step in range(last) if not any(a <= step < b for a, b in holes)]
    sampled = [step for step in kept if step % every == 0]
    at = made.gradients(
        sampled,
        made.totals(made.histograms([{0: 50, -20: 30}] * len(sampled)), [20] * len(sampled)),
    )
    return made.source(whole[kept], at)


def shaded(figure: dict) -> list[tuple[float, float]]:  # type: ignore[type-arg]
    return [
        (each["x0"], each["x1"]) for each in figure["layout"]["shapes"] if each["type"] == "rect"
    ]


@pytest.mark.parametrize("name", BY_STEP)
@pytest.mark.parametrize("x", ["step", "time"])
def test_every_chart_shades_a_gap(name: str, x: str) -> None:
    """A gap has one shade with a label, from the update before it to the one after it, and nothing else has one."""
    figure = FIGURES[name](holed(HOLE), View(x=x, parameter=made.PARAMETER))  # type: ignore[arg-type]
    ends = [HOLE[0] - 1, HOLE[1]]
    if x == "time":
        ends = [(made.START + step * 100_000) / 1000 for step in ends]
    (shade,) = (each for each in figure["layout"]["shapes"] if each["type"] == "rect")

    assert [shade["x0"], shade["x1"]] == ends
    assert shade["label"]["text"] == "no record"
    assert shaded(FIGURES[name](holed(), View(x=x, parameter=made.PARAMETER))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["scale", "underflow", "scalars"])
def test_no_line_is_drawn_across_a_gap(name: str) -> None:
    """Every line has a break inside the gap and nowhere else."""
    figure = FIGURES[name](holed(HOLE), View(parameter=made.PARAMETER))
    lines = [each for each in figure["data"] if each.get("mode", "").startswith("lines")]
    for line in lines:
        if line.get("fill"):
            continue
        x, y = made.read(line["x"]), made.read(line["y"])
        within = (x >= HOLE[0] - 1) & (x <= HOLE[1])
        assert np.isnan(y[within]).any(), line["name"]
        assert np.isfinite(y[~within]).all()
    assert lines


@pytest.mark.parametrize("name", ["exponents", "parameters"])
def test_a_heatmap_is_empty_in_a_gap(name: str) -> None:
    """A heatmap's columns end within one step of the gap, with two empty columns between."""
    (heat, *_) = FIGURES[name](holed(HOLE), View(parameter=made.PARAMETER))["data"]
    x, z = made.read(heat["x"]), made.read(heat["z"])
    columns = len(x)
    empty = np.flatnonzero(np.isnan(z.reshape(-1, columns)).all(0))
    before, after = (x[empty[0] - 1] + x[empty[0]]) / 2, (x[empty[1]] + x[empty[1] + 1]) / 2

    assert len(empty) == 2
    assert (np.diff(x) > 0).all()
    assert HOLE[0] - 1 <= before <= HOLE[0]
    assert HOLE[1] - 1 <= after <= HOLE[1]


def test_many_gaps_stay_apart() -> None:
    """Every gap is found, also near the end of the window, and the shade of a single lost record is 2 pixels wide."""
    holes = [(10, 11), (30, 50), (90, 95)]
    source = holed(*holes)
    gaps = cut(source, View()).gaps
    lone = shaded(FIGURES["scale"](holed((500, 501), last=10_000, every=100), View(width=600)))

    assert list(zip(gaps.starts, gaps.stops, strict=True)) == [(9, 11), (29, 50), (89, 95)]
    assert len(lone) == 1
    assert lone[0][1] - lone[0][0] >= 2 * 10_000 / 600 * 0.99


def test_a_clock_that_was_set_back_is_no_gap() -> None:
    """A clock set back causes neither a shade nor a break in a line."""
    step = np.arange(100)
    time = made.START + np.where(step < 50, step, step - 45) * 100_000
    ones = np.full(100, 1024.0)
    series = made.rows(step, time, ones, ones, np.zeros(100, np.uint8), np.zeros(100, bool))
    for x in ("step", "time"):
        figure = FIGURES["scale"](made.source(series), View(x=x))  # type: ignore[arg-type]
        assert shaded(figure) == []
        assert np.isfinite(made.read(figure["data"][0]["y"])).all()
