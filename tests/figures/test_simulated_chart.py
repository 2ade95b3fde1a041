"""The chart of a simulated policy: the recorded and simulated scales, and its text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import made_series as made
from ampmon_server.analysis.policy.simulation import Recommended, Skips
from ampmon_server.charts import Source, View
from ampmon_server.charts.simulated import simulated
from ampmon_server.model.terms import SETTINGS


def _source(**would: object) -> Source:
    source = made.source(made.updates([1024.0] * 40))
    assert source.replayed is not None
    changed = replace(source.replayed.simulated, **would)  # type: ignore[arg-type]
    return replace(source, replayed=replace(source.replayed, simulated=changed))


def _sentence(source: Source) -> str:
    return str(simulated(source, View())["layout"]["meta"]["sentence"])


def test_both_scales_are_drawn_with_a_band() -> None:
    """Recorded and simulated scales are stepped log2 lines, and the band spans the replays."""
    figure = simulated(_source(), View())
    low, high, recorded, would = figure["data"]
    assert [line["name"] for line in (high, recorded, would)] == ["band", "recorded", "simulated"]
    for line, level in ((low, 10), (high, 12), (recorded, 10), (would, 11)):
        assert made.read(line["x"]).tolist() == list(range(40))
        assert set(made.read(line["y"]).tolist()) == {level}
        assert line["line"]["shape"] == "hv"
    assert high["fill"] == "tonexty"
    assert would["text"][0] == "2\u202f048 = 2¹¹"


def test_the_words_are_as_expected() -> None:
    """The chart's meta has the replayed steps, the form, the result and the code."""
    assert simulated(_source(), View())["layout"]["meta"] == {
        "title": simulated.title,
        "definitions": simulated.definitions,
        "caption": "40 steps replayed, steps 0 – 39: the whole run.",
        "form": {
            "prefix": "sim_",
            "policies": ["torch", "fixed", "megatron", "deepspeed", "fairseq"],
            "policy": "torch",
            "numbers": [
                {"name": name, "hint": SETTINGS[name], "value": value}
                for name, value in (
                    ("init_scale", 65536.0),
                    ("growth_factor", 2.0),
                    ("backoff_factor", 0.5),
                    ("growth_interval", 50),
                )
            ],
        },
        "sentence": "About 2 skips (1 to 3) instead of 9.",
        "standing": "Alternative: no finding recommends a change.",
        "code": "scaler = ampmon.GradScaler(growth_interval=50)  # growth_interval was 2000",
        "bases": {"y": 2},
    }


def test_the_recommended_setting_has_its_code_with_the_findings() -> None:
    """The recommended setting has no code here, another setting has its code, and the run's own has no label."""
    source = made.source(made.updates([1024.0] * 40))
    assert source.replayed is not None
    for setting, standing, has_code in (
        ({"growth_interval": 50.0}, "Recommended: ", False),
        ({"growth_interval": 60.0}, "Alternative: the findings", True),
        ({}, "Alternative: the findings", True),
    ):
        found = replace(source.replayed, recommended=Recommended("code", setting))
        meta = simulated(replace(source, replayed=found), View())["layout"]["meta"]
        assert meta["standing"].startswith(standing)
        assert bool(meta["code"]) == has_code
    own = replace(source.replayed, simulated=source.replayed.recorded)
    meta = simulated(replace(source, replayed=own), View())["layout"]["meta"]
    assert (meta["standing"], meta["code"]) == ("", "")


def test_what_the_run_cannot_tell_is_said() -> None:
    """The sentence says if a range is too wide, why a policy ended, or that there is no skip."""
    assert _sentence(_source(skips=Skips(0, 20.0, 40))).startswith(
        "Inconclusive, because there is too little data at these scales: 0 to 40 skips instead of 9"
    )
    assert _sentence(_source(ended="the scale fell below 1")) == (
        "Training would have ended: the scale fell below 1."
    )
    assert _sentence(_source(skips=Skips(0, 0.1, 2))).startswith("Few or no skips (0 to 2)")
    assert _sentence(_source(skips=Skips(0, 0.0, 0))).startswith("No skips expected instead of 9")


def test_only_the_newest_of_a_long_run_is_replayed_and_said() -> None:
    """A replay of only the newest steps says so in the caption."""
    source = made.source(made.updates([1024.0] * 40))
    part = replace(source, replayed=made.replayed(np.arange(20, 40), whole=False))
    caption = simulated(part, View())["layout"]["meta"]["caption"]
    assert caption.startswith("20 steps replayed, steps 20 – 39: only the newest")
