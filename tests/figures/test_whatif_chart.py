"""The what-if chart: a known gradient shifted to other scales and formats, with its marks and text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import made_series as made
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon_server.analysis.policy.simulation import Recommended
from ampmon_server.analysis.whatif import LEVELS, Gradient
from ampmon_server.charts import ScaleSource, Source, View
from ampmon_server.charts.whatif import FLOOR, whatif
from ampmon_server.model.aggregates import gradients, updates


def _gradient() -> Gradient:
    """A gradient at scale 2**10: 10 % zeros, 10 % at 2**-15, 70 % at 2**0 and 10 % at 2**11, with amax 2**12."""
    histogram = np.zeros(BINS)
    histogram[[-15 - EXPONENT_MIN, -EXPONENT_MIN, 11 - EXPONENT_MIN]] = 0.1, 0.7, 0.1
    return Gradient(10, histogram, 0.1, 2.0**12, 40, 70)


def _source(**asked: object) -> Source:
    scales = ScaleSource(_gradient(), None, **asked)  # type: ignore[arg-type]
    return Source(updates.empty(), gradients.empty(), scales=scales)


def _at(figure: dict, name: str, level: int) -> float:  # type: ignore[type-arg]
    traces = [*made.traces(figure, name=f"{name}, measured"), *made.traces(figure, name=name)]
    drawn = {
        x: y for t in traces for x, y in zip(made.read(t["x"]), made.read(t["y"]), strict=True)
    }
    return float(drawn[level])


def test_a_gradient_is_moved_along_the_scales() -> None:
    """Each doubling of the scale shifts every value by one exponent, out of the subnormal range and into overflow."""
    figure = whatif(_source(), View())
    assert _at(figure, "subnormal", 10) == pytest.approx(-1)
    assert _at(figure, "subnormal", 9) == pytest.approx(-1)
    assert _at(figure, "flushed to zero", 10) == FLOOR
    assert _at(figure, "flushed to zero", 0) == pytest.approx(np.log10(0.1), abs=0.01)
    assert _at(figure, "overflow", 13) == FLOOR
    assert _at(figure, "overflow", 14) == pytest.approx(-1)
    assert _at(figure, "overflow", 26) == pytest.approx(np.log10(0.8))


def test_what_is_measured_is_drawn_apart_from_bounds() -> None:
    """In fp16 the measured shares are dots apart from the lines; another format has no measured shares."""
    figure = whatif(_source(), View())
    for name in ("subnormal", "flushed to zero", "overflow"):
        (dot,) = made.traces(figure, name=f"{name}, measured")
        (line,) = made.traces(figure, name=name)
        assert made.read(dot["x"]).tolist() == [10]
        assert made.read(line["x"]).tolist() == [level for level in LEVELS if level != 10]
    (line,) = made.traces(whatif(_source(), View(format="e4m3")), name="subnormal")
    assert made.read(line["x"]).tolist() == list(LEVELS)


def test_what_comes_back_is_no_more_than_was_zero() -> None:
    """At larger scales the subnormal share grows by at most the share of zeros, and by none if no value is tiny."""
    for tiny, share in ((0.1, 0.103), (0.0, 0.0)):
        histogram = _gradient().histogram.copy()
        histogram[-24 - EXPONENT_MIN] = tiny
        scales = ScaleSource(replace(_gradient(), histogram=histogram, zeros=0.003), None)
        figure = whatif(Source(updates.empty(), gradients.empty(), scales=scales), View())
        height = np.log10(share) if share else FLOOR
        assert _at(figure, "subnormal", 12) == pytest.approx(height, abs=1e-4)


def test_the_whole_chart_is_as_expected() -> None:
    """The chart marks the newest sample's scale, the limit and the chosen scale, and gives the chosen one's code."""
    figure = whatif(_source(), View(whatif_scale=4))
    layout = figure["layout"]
    assert layout["meta"] == {
        "title": whatif.title,
        "definitions": whatif.definitions,
        "caption": "The newest gradient of all fp16-representable parameters, steps 40 – 70, moved to other scales in "
        "fp16. Values flushed or overflowed earlier, in gradients of activations, are not included.",
        "choices": [
            {
                "name": "format",
                "label": "Format",
                "chosen": "fp16",
                "options": [
                    ["fp16", "fp16"],
                    ["bf16", "bf16"],
                    ["e4m3", "fp8 E4M3"],
                    ["e5m2", "fp8 E5M2"],
                ],
            }
        ],
        "slider": {"low": -8, "high": 32, "value": 4},
        "sentence": "At 2⁴: nothing flushed to zero, 10\u202f% subnormal, no overflow, "
        "10.0 bits of headroom. In the newest finite sample, at 2¹⁰: nothing flushed to zero, 10\u202f% subnormal, "
        "no overflow, 4.0 bits of headroom.",
        "standing": "Alternative: no finding recommends a change.",
        "code": "scaler = ampmon.GradScaler(init_scale=2.0**4)  # init_scale was 65536",
        "bases": {"x": 2, "y": 10},
    }
    assert [each["text"] for each in layout["annotations"]] == [
        "newest sample: 2<sup>10</sup>",
        "limit: 2<sup>12</sup>",
        "chosen: 2<sup>4</sup>",
    ]
    assert [shape["x0"] for shape in layout["shapes"]] == [10, 12, 4]
    assert layout["xaxis"]["range"] == [-8, 32]
    assert layout["xaxis"]["fixedrange"]
    assert layout["yaxis"]["ticktext"][0] == "0\u202f%"


def test_without_a_choice_the_recommended_scale_is_shown() -> None:
    """The slider starts at the recommended scale, or else at the sample's, and the code is left to the findings."""
    advised = Recommended("code", {"init_scale": 2.0**6})
    for recommended, level, standing in (
        (advised, 6, "Recommended: the findings show the code."),
        (Recommended("code"), 10, ""),
        (Recommended(), 10, ""),
    ):
        meta = whatif(_source(recommended=recommended), View())["layout"]["meta"]
        assert meta["slider"]["value"] == level
        assert (meta["standing"], meta["code"]) == (standing, "")
    figure = whatif(_source(recommended=advised), View())
    labels = [each["text"] for each in figure["layout"]["annotations"]]
    assert labels[-1] == "recommended, chosen: 2<sup>6</sup>"
    other = whatif(_source(recommended=advised), View(whatif_scale=12))["layout"]["meta"]
    assert other["standing"].startswith("Alternative: the findings recommend another change")
    assert "2.0**12" in other["code"]


def test_another_format_is_stated_beside_fp16() -> None:
    """bf16 has no limit mark and its own code. E4M3 has no code, and its sentence also gives fp16's result there."""
    bf16, e4m3 = (whatif(_source(), View(format=name))["layout"] for name in ("bf16", "e4m3"))
    assert bf16["meta"]["code"].startswith("with torch.autocast(device_type, dtype=torch.bfloat16)")
    assert [each["text"] for each in bf16["annotations"]] == [
        "newest sample, chosen: 2<sup>10</sup>"
    ]
    assert bf16["meta"]["sentence"].startswith(
        "At 2¹⁰ in bf16: nothing flushed to zero, nothing subnormal, no overflow"
    )
    assert e4m3["meta"]["code"] == ""
    assert (
        "In the newest finite sample, at 2¹⁰ in fp16: nothing flushed" in e4m3["meta"]["sentence"]
    )


def test_one_parameter_is_named_and_nothing_is_said_of_none() -> None:
    """The caption names the parameter, and an empty chart gives the reason."""
    one = whatif(_source(), View(parameter="<b>head</b>"))["layout"]["meta"]
    assert one["caption"].startswith("The newest gradient of <b>head</b>, steps 40 – 70")
    source = Source(updates.empty(), gradients.empty(), scales="there is no 'tail'")
    assert (
        whatif(source, View())["layout"]["meta"]["empty"]
        == "No gradient to try at other scales: there is no 'tail'."
    )


@pytest.mark.parametrize("name", ["fp16", "bf16", "e4m3"])
def test_of_one_parameter_there_is_no_code_to_write(name: str) -> None:
    """For a single parameter there is no code, and the sentence says that others may overflow."""
    one, every = (
        whatif(_source(), View(parameter=each, format=name))["layout"]["meta"]
        for each in ("head.weight", None)
    )
    assert one["code"] == ""
    assert (
        one["sentence"]
        == every["sentence"] + " This covers only this parameter; others may overflow."
    )


def test_a_share_too_small_to_draw_and_a_scale_beyond_the_chart_are_said() -> None:
    """A share below the floor is "less than" it, and a current scale beyond the axis is named but not drawn."""
    histogram = np.zeros(BINS)
    histogram[[-15 - EXPONENT_MIN, -EXPONENT_MIN]] = 1e-8, 0.5
    asked = ScaleSource(Gradient(-13, histogram, 0.0, 2.0), None)
    source = Source(updates.empty(), gradients.empty(), scales=asked)
    layout = whatif(source, View(whatif_scale=-8))["layout"]
    assert (
        "In the newest finite sample, at 2⁻¹³: beyond the scales shown."
        in layout["meta"]["sentence"]
    )
    assert not [each for each in layout["annotations"] if "newest sample" in each["text"]]
    source = replace(source, scales=replace(asked, gradient=replace(asked.gradient, level=4)))
    layout = whatif(source, View(whatif_scale=4))["layout"]
    assert "less than 0.0001\u202f% subnormal" in layout["meta"]["sentence"]
