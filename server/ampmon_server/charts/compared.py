"""Charts of 2 to 20 runs on one axis: logged values, scales, skips, and gradients lost in fp16. Pure.

Each run has its own colour and dash, and its name is at the end of its line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampmon_server.charts.logged import logged
from ampmon_server.charts.parts.layout import (
    DEAD,
    ENDLESS,
    around,
    beside,
    empty,
    log2_scale,
    powers_of_two,
    y_axis,
)
from ampmon_server.charts.parts.samples import GRID_DEFINITION, judge
from ampmon_server.charts.parts.source import Figure, View, Window, cut
from ampmon_server.charts.parts.traces import Trace, held, line, plot_x, typed
from ampmon_server.charts.scale import stepped
from ampmon_server.charts.together import (
    COLOURS,
    Compared,
    apart,
    chart,
    hovered,
    left_out,
    nothing_of,
    tall,
    without,
)
from ampmon_server.charts.underflow import ticks
from ampmon_server.model.aggregates.gradients import SHARES as CLASSES
from ampmon_server.model.words import count, percent, power, steps


SHARES = ("subnormal", "zero")
NO_UPDATE = "None of these runs has a step yet."
OFF_GRID = "because they have no finite fp16-representable gradient"
ROW, LOW_ROW = 32, 20
"""Pixels for each run in the rug of skips: for up to eight runs, and for more."""


_SCALE = {
    "title": "Loss scale",
    "definitions": {
        "loss scale": "The factor that multiplies the loss before the backward pass. Shown for the first scaler of "
        "each run."
    },
}
_SKIPS = {
    "title": "Skipped steps",
    "definitions": {
        "skipped": "A step in which any optimizer on any rank found an inf or a NaN in its gradients and left the "
        "weights alone. A mark may stand for several; the counts beside the plot include all in view."
    },
}
_FATE = {
    "title": "Gradient lost in fp16",
    "definitions": {
        "subnormal": "From 2⁻²⁴ to below 2⁻¹⁴: the smaller the value, the fewer bits fp16 keeps.",
        "zero": "Exactly zero, whether fp16 flushed it or it always was.",
        "fp16-representable": GRID_DEFINITION,
    },
}


def scale(runs: Sequence[Compared], view: View) -> Figure:
    """Draw the scale of each run: at most four points per pixel column, with its extremes."""
    drawn, windows, frame = _cut(runs, view)
    if not drawn:
        return empty(_SCALE, nothing_of(runs, view, "step", NO_UPDATE))
    ends = [window.all_updates[0] for window in windows]
    height = tall(len(drawn), 320)
    scales = np.array([end[most] for end in ends for most in ("scale_min", "scale_max")])
    low, high = around(log2_scale(scales))
    newest = log2_scale(np.array([end["after_last"] for end in ends]))
    gone = left_out(runs, drawn, view, "step")
    labels = [
        (float(at), f"{run.label} {_ended(float(at))}", run)
        for at, run in zip(newest, drawn, strict=True)
        if math.isfinite(at)
    ]
    return chart(
        [_named(stepped(of, view), run) for of, run in zip(windows, drawn, strict=True)],
        drawn,
        frame,
        view,
        height=height,
        meta={**_SCALE, "caption": f"Labels show the latest value.{gone}"},
        yaxis=y_axis(range=[low, high], **powers_of_two(low, high)),
        annotations=apart(labels, (low, high), height - 48, view),
    )


def _ended(at: float) -> str:
    """What is beside the end of a line of log2 of the scale."""
    if at <= DEAD:
        return "dead"
    return power(at) if at < ENDLESS else ""


def skips(runs: Sequence[Compared], view: View) -> Figure:
    """Draw a row of marks for each run, and the exact number of its skipped updates in view."""
    drawn, windows, frame = _cut(runs, view)
    if not drawn:
        return empty(_SKIPS, nothing_of(runs, view, "step", NO_UPDATE))
    many = len(drawn) > COLOURS
    traces, labels = [], []
    for row, (run, window) in enumerate(zip(drawn, windows, strict=True)):
        all_of = window.all_updates[0]
        skipped, total = int(all_of["skipped"]), int(all_of["n"])
        share = percent(skipped / total)
        words = f"{run.label}<br>{count(skipped)} of {count(total)} ({share})"
        words = run.beside(share) if many else words
        labels.append(beside(-row, words, run.role, view))
        traces.append(_rug(run, window, row, view))
    gone = left_out(runs, drawn, view, "step")
    return chart(
        traces,
        drawn,
        frame,
        view,
        height=64 + (LOW_ROW if many else ROW) * len(drawn),
        meta={**_SKIPS, "caption": f"Ticks mark skipped steps.{gone}"},
        yaxis=y_axis(range=[0.6 - len(drawn), 0.6], showticklabels=False, tickvals=[]),
        annotations=labels,
    )


def fate(runs: Sequence[Compared], view: View) -> Figure:
    """Draw the shares of subnormal and of zero elements, over all samples in a column, on log scales."""
    drawn, windows, frame = _cut(runs, view)
    cuts = zip(drawn, windows, strict=True)
    found = [(run, window, of) for run, window in cuts if (of := judge(window, view))]
    judged = [each for each in found if each[2].side == "on"]
    notes = without(OFF_GRID, [run for run, _, of in found if of.side == "off"])
    notes += left_out(runs, [run for run, _, _ in found], view, "sample")
    if not judged:
        none = nothing_of(runs, view, "sample", "No gradient of these runs is sampled yet.")
        return empty(_FATE, notes.strip() if found else none)
    height = tall(len(judged), 400, panels=2)
    traces: list[Trace] = []
    labels: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for panel, (share, domain) in enumerate(zip(SHARES, ((0.54, 1), (0, 0.46)), strict=True)):
        axis = "y" if panel == 0 else "y2"
        shares = [getattr(of.classes(), share) / of.classes().total for _, _, of in judged]
        floor, top = _decades(shares)
        ends = []
        for (run, window, of), line_of in zip(judged, shares, strict=True):
            left, right = held(of.x, window)
            heights = np.maximum(np.log10(np.maximum(line_of, 1e-30)), floor)
            said = [f"{percent(each)} {share}" for each in line_of.tolist()]
            trace = line(left, right, heights, view, said, yaxis=axis, line=run.line)
            # The legend has room for each run only once.
            traces.append({**trace, **hovered(run), "showlegend": panel == 0})
            newest = of.newest.of("last_share")[0, CLASSES.index(share)]
            ends.append((float(heights[-1]), run.beside(percent(float(newest))), run))
        labels += apart(ends, (floor, top), (height - 48) * 0.46, view, yref=axis)
        axes[f"yaxis{axis[1:]}"] = y_axis(
            range=[floor, top], domain=domain, title={"text": share}, **ticks(floor, top)
        )
    return chart(
        traces,
        [run for run, _, _ in judged],
        frame,
        view,
        height=height,
        meta={
            **_FATE,
            "caption": "Shares of gradient elements at sampled steps; the newest beside each line."
            + notes,
        },
        annotations=labels,
        anchor="y2",
        **axes,
    )


COMPARED: Mapping[str, Callable[[Sequence[Compared], View], Figure]] = {
    "logged": logged,
    "scale": scale,
    "skips": skips,
    "fate": fate,
}
"""Every chart of several runs, by name."""


def _cut(runs: Sequence[Compared], view: View) -> tuple[list[Compared], list[Window], Window]:
    """Cut each run to the view. Return the runs with an update in view, their windows, and an empty one around them.

    ``runs`` must not be empty.
    """
    cuts = [cut(run.source, view, run.started) for run in runs]
    windows = [window for window in cuts if len(window.updates)]
    drawn = [run for run, window in zip(runs, cuts, strict=True) if len(window.updates)]
    low = min((window.low for window in windows), default=0)
    high = max((window.high for window in windows), default=0)
    updates, gradients = cuts[0].updates[:0], cuts[0].gradients[:0]
    frame = replace(cuts[0], low=low, high=high, updates=updates, gradients=gradients)
    return drawn, windows, frame


def _named(trace: Trace, run: Compared) -> Trace:
    """Style the scale of one of several runs. The hover text names the run and the step, whatever x is."""
    said = {"hovertemplate": "%{text}, step %{customdata:,d}"}
    return {**trace, **hovered(run), **said, "line": {**trace["line"], **run.line}}


def _rug(run: Compared, window: Window, row: int, view: View) -> Trace:
    held_by = window.updates[window.updates["skipped"] > 0]
    spans = zip(
        *(held_by[name].tolist() for name in ("skip_first", "skip_last", "skipped")), strict=True
    )
    said = [f"{steps(first, last)}: {count(number)} skipped" for first, last, number in spans]
    colour = f"role:{run.role}"
    tick = {"symbol": "line-ns-open", "size": 14, "color": colour, "line": {"width": 1.5}}
    return {
        "type": "scatter",
        **hovered(run),
        "mode": "markers",
        "marker": tick,
        "x": plot_x(window.x.at(held_by, "skip"), view),
        "y": [-row] * len(held_by),
        "customdata": typed(held_by["skipped"]),
        "text": said,
        "hovertemplate": "%{text}",
    }


def _decades(shares: Sequence[Any]) -> tuple[float, float]:
    """Return the floor and the top of the axis in decades. The floor, for zero, is one decade below the least share."""
    seen = np.concatenate([np.asarray(each, np.float64).ravel() for each in shares])
    seen = seen[seen > 0]
    low = float(np.clip(np.floor(np.log10(seen.min())), -7, -1)) if len(seen) else -3.0
    return low - 1, 0.1
