"""The chart of activations by module: where in the network gradients are lost, and what overflowed first."""

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
    """The first module that put out inf or NaN is named, and crosses stand from there on."""
    sample = made.modules(
        {"a": {0: 9}, "b": {}, "c": {}},
        inf={"a": 1},
        forward={"b": np.inf, "c": np.nan},
    )
    figure = activations(made.source(through=sample), View())
    (crosses,) = made.traces(figure, name="overflow forward")

    assert "Overflowed in forward, first in b." in figure["layout"]["meta"]["caption"]
    assert made.read(crosses["y"]).tolist() == [-1, -2]
    assert made.read(crosses["x"]).tolist() == [0, 0]


def test_a_backward_overflow_is_named_by_its_last_module() -> None:
    """Backward goes the other way: the last module whose gradient was not finite is where it began."""
    sample = made.modules({"a": {0: 9}, "b": {0: 9}, "c": {0: 9}}, inf={"a": 9, "b": 1})
    figure = activations(made.source(through=sample), View())
    (crosses,) = made.traces(figure, name="overflow back")

    assert "Overflowed in backward, first at b." in figure["layout"]["meta"]["caption"]
    assert made.read(crosses["y"]).tolist() == [0, -1]
    assert made.traces(figure, name="overflow forward") == []


def test_of_many_modules_the_worst_are_drawn_in_their_order() -> None:
    """No more rows than can be read; those that lose most, and the caption says so."""
    sample = made.modules({f"layer{place}": {0: 200 - place, -20: place} for place in range(100)})
    layout = activations(made.source(through=sample), View())["layout"]

    worst = [f"layer{place}" for place in range(100 - ROWS_MAX, 100)]
    assert layout["yaxis"]["ticktext"] == worst
    assert f"The {ROWS_MAX} that lose most are drawn." in layout["meta"]["caption"]


def test_a_model_of_as_many_modules_as_are_drawn_has_all_of_them() -> None:
    """Where none is left out, the caption does not say that some are."""
    sample = made.modules({f"layer{place}": {0: 9} for place in range(ROWS_MAX)})
    layout = activations(made.source(through=sample), View())["layout"]
    assert len(layout["yaxis"]["ticktext"]) == ROWS_MAX
    assert "lose most" not in layout["meta"]["caption"]


def test_a_hover_says_the_whole_name_and_how_sure() -> None:
    """Names are shortened in the middle beside their rows; a sample's shares have their standard error."""
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
    """A module of which a hundredth was looked at counts whole beside one that was seen whole."""
    sample = made.modules(
        {"large": {-20: 100}, "small": {0: 50}},
        zeros={"small": 50},
        elements=np.array([9900, 100]),
    )
    caption = activations(made.source(through=sample), View())["layout"]["meta"]["caption"]
    assert "0.5\u202f% are zero and 99\u202f% subnormal" in caption


def test_what_is_compiled_is_said_to_be_left_out() -> None:
    """Modules that could not be looked into are counted in the caption."""
    sample = made.modules({"head": {0: 1}}, left_out=("encoder", "decoder"))
    caption = activations(made.source(through=sample), View())["layout"]["meta"]["caption"]
    assert "2 compiled modules not looked into." in caption


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
    """Without a sample, the line of code that brings one; without fp16 gradients, where they might have gone."""
    assert words in activations(source, view)["layout"]["meta"]["empty"]


def test_the_pages_zoom_is_not_its_own() -> None:
    """Its axes hold no steps, so none of them can be zoomed."""
    layout = activations(made.source(through=THREE), View())["layout"]
    assert all(layout[axis]["fixedrange"] for axis in ("xaxis", "xaxis2", "yaxis"))


def test_what_fp16_could_not_hold_is_drawn() -> None:
    """A module that put out more than 65 504, in fp32, stands left of no headroom, within the chart."""
    of = made.modules({"norm": {0: 9}, "head": {0: 9}}, forward={"norm": 65504 * 2.0**6, "head": 1})
    layout = activations(made.source(through=of), View())["layout"]
    assert layout["xaxis2"]["range"][0] <= -6


def test_a_click_on_a_module_finds_its_parameters() -> None:
    """Each row says what to search for: all that is in its module, and nothing of one that is called alike."""
    sample = made.modules({"h.1": {0: 5}, "h.10": {0: 5}})
    figure = activations(made.source(through=sample), View())
    assert figure["layout"]["meta"]["opens"] == [("search", "h.1.*"), ("search", "h.10.*")]
