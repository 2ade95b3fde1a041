"""The charts of one parameter: over the run, and its elements by magnitude."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import made_series as made
from ampmon.numerics.histogram import BINS
from ampmon_server.charts import ParameterSource, Source, View
from ampmon_server.charts.histogram import histogram
from ampmon_server.charts.parameter import parameter
from ampmon_server.model.series import ParameterSample


NAME = "blocks.0.part.1.weight"


def _of(steps: int, **fields: Any) -> ParameterSource:
    """Two parameters of 100 elements. The second has 1, 2, 3, ... subnormal elements and zeros; amax is 2**-10."""
    subnormal = np.stack([np.zeros(steps, np.int64), 1 + np.arange(steps)], axis=1)
    counts = np.zeros((steps, 2, BINS), np.int64)
    counts[..., 20] = subnormal
    step = np.arange(steps)
    looked, amax = np.full((steps, 2), 100), np.full((steps, 2), 2.0**-10)
    of = made.parameters(step, made.START + step * 100_000, counts, looked, amax)
    return ParameterSource(of.names, of.cells, **fields)


def _drawn(of: ParameterSource, width: int = 1000) -> dict[str, Any]:
    source = made.source(made.updates([1.0] * (int(of.cells["last"].max()) + 1)))
    shown = Source(source.updates, source.gradients, parameters=of)
    return parameter(shown, View(width=width, parameter=NAME))


def test_a_parameter_has_its_shares_its_magnitude_and_its_norm() -> None:
    """The chosen parameter has lines for its shares, and for the logarithms of its largest magnitude and norm."""
    figure = _drawn(_of(2))
    drawn = {t["name"]: made.read(t["y"]).tolist() for t in figure["data"]}
    norm = np.log10(2.0**-5)
    assert drawn == {
        "subnormal or below range": [0.01, 0.02],
        "zero": [0.99, 0.98],
        "largest magnitude": [-10, -10],
        "norm": [pytest.approx(norm), pytest.approx(norm)],
    }
    said = [t["text"][1].replace("\u202f", " ") for t in figure["data"]]
    assert said == [
        "2 % subnormal or below range",
        "98 % zero",
        "largest 0.000977, headroom 26.0 bits",
        "norm 0.0312",
    ]
    assert figure["layout"]["meta"]["caption"] == "2 sampled steps."


def test_an_overflow_of_the_parameter_is_marked() -> None:
    """Where the parameter overflowed, the line breaks and a cross is at fp16's maximum."""
    of = _of(3)
    of.cells["amax"][1] = np.inf
    figure = _drawn(of)
    (cross,) = made.traces(figure, name="inf or NaN")
    (line,) = made.traces(figure, name="largest magnitude")
    assert np.isnan(made.read(line["y"])).tolist() == [False, True, False]
    assert made.read(cross["y"])[1] == pytest.approx(16, abs=0.01)
    assert "Overflowed in 1 column." in figure["layout"]["meta"]["caption"]


def test_many_samples_share_a_column() -> None:
    """A column of several samples shows the share over all elements and the largest magnitude."""
    of = _of(80)
    of.cells["amax"][40] = 1.0
    figure = _drawn(of, width=100)
    (share,) = made.traces(figure, name="zero")
    assert len(made.read(share["y"])) == 20
    assert made.read(share["y"])[0] == pytest.approx(0.975)
    assert made.read(made.traces(figure, name="largest magnitude")[0]["y"]).max() == 0
    assert "Up to 4 samples share a column" in figure["layout"]["meta"]["caption"]


@pytest.mark.parametrize("draw", [parameter, histogram])
@pytest.mark.parametrize(
    ("chosen", "words"),
    [(None, "click on a row"), ("<b>", "No gradient of a parameter named '<b>'")],
)
def test_a_parameter_that_is_not_there_is_said(draw: Any, chosen: str | None, words: str) -> None:
    """Without a chosen parameter, or with an unknown one, both charts say so."""
    source = made.source(made.updates([1.0] * 2))
    shown = Source(source.updates, source.gradients, parameters=_of(2))
    figure = draw(shown, View(parameter=chosen))
    assert words in figure["layout"]["meta"]["empty"]


def _histogram(sample: ParameterSample) -> dict[str, Any]:
    source = made.source(made.updates([1.0]))
    return histogram(replace(source, sample=sample), View(parameter=NAME))


def test_elements_stand_by_magnitude_in_the_colours_of_their_classes() -> None:
    """Bars are ordered by magnitude, zeros first and non-finite values last, in the colours of their classes."""
    figure = _histogram(
        made.sample({-30: 1, -24: 2, -14: 3, 15: 4}, zeros=9, inf=1, amax=40000.0, elements=400)
    )
    (bars,) = figure["data"]
    assert made.read(bars["x"]).tolist() == [-32, -30, -24, -14, 15, 17]
    assert made.read(bars["y"]).tolist() == [9, 1, 2, 3, 4, 1]
    assert bars["marker"]["color"] == [
        f"role:{role}" for role in ("zero", "below-grid", "subnormal", "normal", "normal", "skip")
    ]
    assert bars["text"][2].replace("\u202f", " ") == (
        "2⁻²⁴ up to 2⁻²³: 2 elements, 10 %<br>subnormal in fp16"
    )
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [15.5, -14.5, -24.5]
    assert figure["layout"]["meta"]["caption"].replace("\u202f", " ") == (
        "Step 7, scale 1 024 = 2¹⁰: of a sample of 20 of its 400 elements 45 % zero, 5 % below range, 10 % subnormal, "
        "35 % normal, 5 % overflow in fp16. The largest is 40 000: at most 0.7 bits of headroom."
    )


def test_another_format_has_limits_of_its_own() -> None:
    """Another format classifies the elements by its own limits."""
    source = made.source(made.updates([1.0]))
    shown = replace(source, sample=made.sample({-9: 1, -6: 2, 9: 3}))
    figure = histogram(shown, View(format="e4m3", parameter=NAME))
    (bars,) = figure["data"]
    assert bars["marker"]["color"] == ["role:subnormal", "role:normal", "role:skip"]
    assert bars["text"][2].endswith("<br>overflow in E4M3")
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [8.5, -6.5, -9.5]
    assert figure["layout"]["meta"]["choices"][0]["chosen"] == "e4m3"
