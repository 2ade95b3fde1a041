"""The scale as recorded and as simulated under another policy. A band shows what the run leaves open."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ampmon_server.analysis.policy.history import History, scale_of
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.analysis.policy.scalers import KINDS, Setting, changed
from ampmon_server.analysis.policy.simulation import Path, sentence
from ampmon_server.charts.parts.chart import chart, why_no_updates
from ampmon_server.charts.parts.layout import Figure, around, figure, scale_axis
from ampmon_server.charts.parts.source import ReplaySource
from ampmon_server.charts.parts.traces import Trace, broken
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.series import Floats
from ampmon_server.model.terms import SETTINGS
from ampmon_server.model.words import plural, power_of_two, steps


PREFIX = "sim_"
"""The prefix of the reader's settings in the URL."""

_HATCH = {"shape": "/", "fgcolor": "role:muted", "fgopacity": 0.6, "size": 4, "solidity": 0.2}


@chart(
    title="Simulator: loss scale under another policy",
    needs="updates",
    order=110,
    reads="replay",
    tab="whatif",
    choices=tuple(f"{PREFIX}{name}" for name in ("policy", *SETTINGS)),
    definitions={
        "recorded": "The scale as recorded, at a limited number of places along the run. The loss scale chart shows "
        "every change.",
        "simulated": "The scale that the policy would have had, given the recorded overflows: the median of up to "
        "64 replays in which each step does what it did in the run.",
        "band": "Nearly all of up to 128 replays lie in it. Some of them draw at random what the run does not show, "
        "once assuming the best and once the worst.",
        "skips": "Steps that overflow and leave the weights alone. The ends of the band are in brackets.",
    },
)
def simulated(window: Window) -> Figure | str:
    """Draw two stepped lines and a band. A sentence gives the policy's result, or says that the run leaves it open."""
    found = window.source.replayed
    if found is None:
        return why_no_updates(window)
    path, was = found.path, found.was
    low, high = around(np.concatenate([path.low, path.high, was.low, was.high]), pad=0.0)
    return figure(
        _traces(path, was, window),
        window,
        height=256,
        named=["recorded", "simulated", "band"],
        caption=_stretch(found.history),
        meta={
            "form": _form(found.simulated.setting),
            "sentence": sentence(found.recorded, found.simulated),
            **_standing(found),
            "bases": {"y": 2},
        },
        hovermode="x unified",
        yaxis=scale_axis(low, high),
    )


def _traces(path: Path, was: Path, window: Window) -> list[Trace]:
    cells = window.in_steps
    times = np.interp(path.steps, cells["first"], cells["time_first"]).astype(np.int64)
    x = window.x.of(path.steps, times)
    order = np.argsort(x, kind="stable")
    points = broken(x[order], window.gaps, held=True)

    def stepped(name: str, level: Floats, role: str, dash: str) -> Trace:
        said = [_scale(each) for each in level[order].tolist()]
        style = {"shape": "hv", "color": f"role:{role}", "width": 1.5, "dash": dash}
        mode = "lines" if len(points.x) > 1 else "lines+markers"
        keys = {"mode": mode, "hovertemplate": "%{text}", "line": style}
        return points.line(level[order], window, said, name=name, **keys)

    unseen: Trace = {"line": {"shape": "hv", "width": 0}, "hoverinfo": "skip"}
    return [
        # The lower end, invisible, and the upper end, filled down to it.
        points.line(path.low[order], window, **unseen, showlegend=False),
        points.line(
            path.high[order], window, **unseen, name="band", fill="tonexty", fillpattern=_HATCH
        ),
        stepped("recorded", was.expected, "scale", "solid"),
        stepped("simulated", path.expected, "ink", "dash"),
    ]


def _scale(level: float) -> str:
    if math.isnan(level):
        return "ended"
    return power_of_two(scale_of(level)) if level > -math.inf else "dead"


def _stretch(of: History) -> str:
    where = f"{plural(of.replayed, 'step')} replayed, {steps(of.first, of.last)}"
    if of.is_whole:
        return f"{where}: the whole run."
    return f"{where}: only the newest steps, from the scale at that point, without calibration."


def _standing(found: ReplaySource) -> dict[str, str]:
    """Compare the setting with the run's recommendation, and give the code if it is an alternative."""
    setting, advised, policy = found.simulated.setting, found.recommended, found.history.policy
    if setting == found.recorded.setting:
        return {"standing": "", "code": ""}
    same = bool(advised.setting) and setting == changed("torch", policy, **advised.setting)
    code = "" if same else in_settings_of(policy, setting.code(policy))
    return {"standing": advised.standing(same=same), "code": code}


def _form(setting: Setting) -> dict[str, Any]:
    """The settings that a reader can change."""
    numbers = [
        {"name": name, "hint": hint, "value": value}
        for name, hint in SETTINGS.items()
        if (value := getattr(setting, name)) is not None
    ]
    return {
        "prefix": PREFIX,
        "policies": list(KINDS),
        "policy": setting.kind,
        "numbers": numbers,
    }
