"""The chart of activations by module: where gradients are lost, and what overflowed first."""

from __future__ import annotations

import numpy as np
import pytest

import made_series as made
from ampmon_server.charts import Source, View
from ampmon_server.charts.activations import ROWS_MAX, activations


THREE = made.modules(
    {"inner": {0: 50, -20: 30}, "norm": {}, "head": {0: 90, -20: 10}},
    zeros={"inner": 20},
    forward={"inner": 65504 / 2**3, "norm": 1e9, "head": 65504 / 2**10},
)


def test_a_forward_overflow_is_named_by_its_first_module() -> None:
    """The caption names the first module with an inf or NaN output, and crosses mark it and the modules after it."""
    sample = made.modules(
        {"a": {0: 9}, "b": {}, "c": {}},
        inf={"a": 1},
        forward={"b": np.inf, "c": np.nan},
    )
    figure = activations(made.source(through=sample), View())
    (crosses,) = made.traces(figure, name="overflow forward")

    assert "Overflow in the forward pass, first in b." in figure["layout"]["meta"]["caption"]
    assert made.read(crosses["y"]).tolist() == [-1, -2]
    assert made.read(crosses["x"]).tolist() == [0, 0]


def test_a_backward_overflow_is_named_by_its_last_module() -> None:
    """In backward, the overflow began at the last module with a non-finite gradient; crosses mark all such modules."""
    sample = made.modules({"a": {0: 9}, "b": {0: 9}, "c": {0: 9}}, inf={"a": 9, "b": 1})
    figure = activations(made.source(through=sample), View())
    (crosses,) = made.traces(figure, name="overflow back")

    assert "Overflow in the backward pass, first at b." in figure["layout"]["meta"]["caption"]
    assert made.read(crosses["y"]).tolist() == [0, -1]
    assert made.traces(figure, name="overflow forward") == []


def test_of_many_modules_the_worst_are_drawn_in_their_order() -> None:
    """Of many modules only the ROWS_MAX that lose most are drawn, in model order, and the caption says so."""
    sample = made.modules({f"layer{index}": {0: 200 - index, -20: index} for index in range(100)})
    layout = activations(made.source(through=sample), View())["layout"]

    worst = [f"layer{index}" for index in range(100 - ROWS_MAX, 100)]
    assert layout["yaxis"]["ticktext"] == worst
    assert f"The {ROWS_MAX} modules that lose most are drawn." in layout["meta"]["caption"]


def test_a_model_of_as_many_modules_as_are_drawn_has_all_of_them() -> None:
    """If every module is drawn, the caption does not mention any left out."""
    sample = made.modules({f"layer{index}": {0: 9} for index in range(ROWS_MAX)})
    layout = activations(made.source(through=sample), View())["layout"]
    assert len(layout["yaxis"]["ticktext"]) == ROWS_MAX
    assert "lose most" not in layout["meta"]["caption"]


def test_a_hover_says_the_whole_name_and_how_sure() -> None:
    """A hover shows the escaped full name and standard errors; the axis shows a shortened name."""
    name = "encoder.layers.11.attention.self.<query>.projection"
    counts = {name: {0: 8000, -20: 8000}}
    sample = made.modules(counts, elements=np.array([10**6]))
    figure = activations(made.source(through=sample), View(width=390))
    (bar, _) = made.traces(figure, type="bar")

    assert figure["layout"]["yaxis"]["ticktext"] == ["encoder.…jection"]
    assert "encoder.layers.11.attention.self.&lt;query&gt;.projection" in bar["text"][0]
    assert (
        bar["text"][0]
        .replace("\u202f", " ")
        .endswith("50 % ± 1.6 % subnormal<br>0 % ± 0.096 % zero<br>16 000 of 1 000 000 elements")
    )
    assert "The shares are those of a sample." in figure["layout"]["meta"]["caption"]


def test_the_caption_weighs_modules_by_their_elements() -> None:
    """The caption weights each module by its number of elements."""
    sample = made.modules(
        {"large": {-20: 100}, "small": {0: 50}},
        zeros={"small": 50},
        elements=np.array([9900, 100]),
    )
    caption = activations(made.source(through=sample), View())["layout"]["meta"]["caption"]
    assert "0.5\u202f% of the elements are zero and 99\u202f% subnormal" in caption


def test_what_is_compiled_is_said_to_be_left_out() -> None:
    """The caption counts compiled modules, which have no hooks."""
    sample = made.modules({"head": {0: 1}}, left_out=("encoder", "decoder"))
    caption = activations(made.source(through=sample), View())["layout"]["meta"]["caption"]
    assert "2 compiled modules not measured." in caption


@pytest.mark.parametrize(
    ("source", "view", "words"),
    [
        (made.source(), View(), "Config(activations=100)"),
        (made.source(), View(start=5, stop=9), "No sampled activation in steps 5 – 8."),
        (Source(made.updates([]), made.gradients([]), disabled=True), View(), "disabled"),
        (made.source(through=made.modules({"norm": {}})), View(), "under autocast to fp16?"),
    ],
)
def test_an_empty_chart_says_what_to_do(source: Source, view: View, words: str) -> None:
    """An empty chart says why, and without a sample it names the setting that takes one."""
    assert words in activations(source, view)["layout"]["meta"]["empty"]


def test_the_pages_zoom_is_not_its_own() -> None:
    """None of the axes can be zoomed, because none has steps."""
    layout = activations(made.source(through=THREE), View())["layout"]
    assert all(layout[axis]["fixedrange"] for axis in ("xaxis", "xaxis2", "yaxis"))


def test_what_fp16_could_not_hold_is_drawn() -> None:
    """An fp32 output above 65504 has negative headroom, within the range of the axis."""
    of = made.modules({"norm": {0: 9}, "head": {0: 9}}, forward={"norm": 65504 * 2.0**6, "head": 1})
    layout = activations(made.source(through=of), View())["layout"]
    assert layout["xaxis2"]["range"][0] <= -6


def test_a_click_on_a_module_finds_its_parameters() -> None:
    """A click on a row searches for the parameters of exactly that module."""
    sample = made.modules({"h.1": {0: 5}, "h.10": {0: 5}})
    figure = activations(made.source(through=sample), View())
    assert figure["layout"]["meta"]["opens"] == [("search", "h.1.*"), ("search", "h.10.*")]
