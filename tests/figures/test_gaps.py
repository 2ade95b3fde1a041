"""Where records are missing every chart is empty and shaded; where a clock was only set back, none is."""

from __future__ import annotations

import numpy as np
import pytest

import made_series as made
from ampmon_server.charts import APART, FIGURES, Source, View
from ampmon_server.charts.parts.gaps import Gaps
from ampmon_server.charts.parts.source import cut


HOLE = (40, 60)
"""Steps from the first to before the second have no record."""

BY_STEP = [name for name in FIGURES if name not in APART]


def holed(*holes: tuple[int, int], last: int = 100, every: int = 5) -> Source:
    """A hundred updates but for holes, of which some are sampled."""
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
    """From the update before the hole to the one after it there is one shade, which says so, and none anywhere else."""
    figure = FIGURES[name](holed(HOLE), View(x=x))  # type: ignore[arg-type]
    ends = [HOLE[0] - 1, HOLE[1]]
    if x == "time":
        ends = [(made.START + step * 100_000) / 1000 for step in ends]
    (shade,) = (each for each in figure["layout"]["shapes"] if each["type"] == "rect")

    assert [shade["x0"], shade["x1"]] == ends
    assert shade["label"]["text"] == "no record"
    assert shaded(FIGURES[name](holed(), View(x=x))) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["scale", "underflow", "scalars"])
def test_no_line_is_drawn_across_a_gap(name: str) -> None:
    """Between the last point before the hole and the first one after it each line has a point that is nowhere."""
    figure = FIGURES[name](holed(HOLE), View())
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
    """Columns end within a step of the hole's ends: half way to the next centre, which is an empty column's."""
    (heat, *_) = FIGURES[name](holed(HOLE), View())["data"]
    x, z = made.read(heat["x"]), made.read(heat["z"])
    columns = len(x)
    empty = np.flatnonzero(np.isnan(z.reshape(-1, columns)).all(0))
    before, after = (x[empty[0] - 1] + x[empty[0]]) / 2, (x[empty[1]] + x[empty[1] + 1]) / 2

    assert len(empty) == 2
    assert (np.diff(x) > 0).all()
    assert HOLE[0] - 1 <= before <= HOLE[0]
    assert HOLE[1] - 1 <= after <= HOLE[1]


def test_many_gaps_stay_apart() -> None:
    """Holes are found one by one, the last ones of a window too, and a lone lost record is wide enough to be seen."""
    holes = [(10, 11), (30, 50), (90, 95)]
    source = holed(*holes)
    gaps = Gaps.of(cut(source, View()))
    lone = shaded(FIGURES["scale"](holed((500, 501), last=10_000, every=100), View(width=600)))

    assert list(zip(gaps.starts, gaps.stops, strict=True)) == [(9, 11), (29, 50), (89, 95)]
    assert len(lone) == 1
    assert lone[0][1] - lone[0][0] >= 2 * 10_000 / 600 * 0.99


def test_a_clock_that_was_set_back_is_no_gap() -> None:
    """Whatever order time puts the updates in, with none missing nothing is shaded and no line breaks."""
    step = np.arange(100)
    time = made.START + np.where(step < 50, step, step - 45) * 100_000
    ones = np.full(100, 1024.0)
    series = made.rows(step, time, ones, ones, np.zeros(100, np.uint8), np.zeros(100, bool))
    for x in ("step", "time"):
        figure = FIGURES["scale"](made.source(series), View(x=x))  # type: ignore[arg-type]
        assert shaded(figure) == []
        assert np.isfinite(made.read(figure["data"][0]["y"])).all()
