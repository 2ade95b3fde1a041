"""Charts of 2 to 20 runs on one axis: logged values, scales, skips, and gradients lost in fp16. Pure.

Each run has its own colour and dash, and its name is at the end of its line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampmon_server.charts.logged import logged
from ampmon_server.charts.parts.layout import (
    Figure,
    around,
    beside,
    log2_scale,
    scale_axis,
    y_axis,
)
from ampmon_server.charts.parts.samples import GRID_DEFINITION, judge
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, line, rug
from ampmon_server.charts.parts.window import Window, cut
from ampmon_server.charts.scale import stepped
from ampmon_server.charts.together import (
    COLOURS,
    Compared,
    ComparedChart,
    apart,
    chart,
    frame_of,
    hovered,
    left_out,
    nothing_of,
    side_by_side,
    tall,
    without,
)
from ampmon_server.charts.underflow import decades, height_of, ticks
from ampmon_server.model.aggregates.gradients import SHARES as CLASSES
from ampmon_server.model.scale_policy import DEAD, ENDLESS
from ampmon_server.model.words import count, percent, power


NO_UPDATE = "None of these runs has a step."
OFF_GRID = "because they have no finite fp16-representable gradient"
ROW, LOW_ROW = 32, 20
"""Pixels for each run in the rug of skips: for up to eight runs, and for more."""
_ENDS = {DEAD: "dead", ENDLESS: "∞"}
_SAID = {"said": "{where}: {skips}", "hovertemplate": "%{text}"}


@side_by_side(
    "Loss scale",
    {
        "loss scale": "The factor that multiplies the loss before the backward pass. Shown for the first scaler of "
        "each run."
    },
)
def scale(runs: Sequence[Compared], view: View) -> Figure | str:
    """Draw the scale of each run: at most four points per pixel column, with its extremes."""
    windows, frame = _cut(runs, view)
    if not windows:
        return nothing_of(runs, view, "step", NO_UPDATE)
    drawn = [run for run, _ in windows]
    ends = [window.all_updates[0] for _, window in windows]
    height = tall(len(drawn), 320)
    scales = np.array([end[most] for end in ends for most in ("scale_min", "scale_max")])
    low, high = around(log2_scale(scales))
    newest = log2_scale(np.array([end["after_last"] for end in ends])).tolist()
    labels = [
        (at, f"{run.label} {_ENDS.get(at) or power(at)}", run)
        for at, run in zip(newest, drawn, strict=True)
        if math.isfinite(at)
    ]
    return chart(
        [_named(stepped(window), run) for run, window in windows],
        drawn,
        frame,
        height=height,
        caption=f"Labels show the latest value.{left_out(runs, drawn, view, 'step')}",
        meta={"bases": {"y": 2}},
        yaxis=scale_axis(low, high),
        annotations=apart(labels, (low, high), height - 48, view),
    )


@side_by_side(
    "Skipped steps",
    {
        "skipped": "A step in which any optimizer on any rank found an inf or a NaN in its gradients and left the "
        "weights alone. A mark may stand for several; the counts beside the plot include all in view."
    },
)
def skips(runs: Sequence[Compared], view: View) -> Figure | str:
    """Draw a row of marks for each run, and the exact number of its skipped updates in view."""
    windows, frame = _cut(runs, view)
    if not windows:
        return nothing_of(runs, view, "step", NO_UPDATE)
    drawn = [run for run, _ in windows]
    many = len(drawn) > COLOURS
    labels = []
    for row, (run, window) in enumerate(windows):
        all_of = window.all_updates[0]
        skipped, total = int(all_of["skipped"]), int(all_of["n"])
        share = percent(skipped / total)
        words = f"{run.label}<br>{count(skipped)} of {count(total)} ({share})"
        labels.append(beside(-row, run.beside(share) if many else words, run.role, view))
    return chart(
        [
            rug(window, -row, run.role, 14, **_SAID, **hovered(run))
            for row, (run, window) in enumerate(windows)
        ],
        drawn,
        frame,
        height=64 + (LOW_ROW if many else ROW) * len(drawn),
        caption=f"Ticks mark skipped steps.{left_out(runs, drawn, view, 'step')}",
        yaxis=y_axis(range=[0.6 - len(drawn), 0.6], showticklabels=False, tickvals=[]),
        annotations=labels,
    )


@side_by_side(
    "Gradient lost in fp16",
    {
        "subnormal": "From 2⁻²⁴ to below 2⁻¹⁴: the smaller the value, the fewer bits fp16 keeps.",
        "zero": "Exactly zero, whether fp16 flushed it or it always was.",
        "fp16-representable": GRID_DEFINITION,
    },
)
def fate(runs: Sequence[Compared], view: View) -> Figure | str:
    """Draw the shares of subnormal and of zero elements, over all samples in a column, on log scales."""
    windows, frame = _cut(runs, view)
    found = [(run, of) for run, window in windows if (of := judge(window))]
    judged = [(run, of) for run, of in found if of.side == "on"]
    notes = without(OFF_GRID, [run for run, of in found if of.side == "off"])
    notes += left_out(runs, [run for run, _ in found], view, "sample")
    if not judged:
        none = nothing_of(runs, view, "sample", "No gradient of these runs was sampled.")
        return notes.strip() if found else none
    height = tall(len(judged), 400, panels=2)
    traces: list[Trace] = []
    labels: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for share, axis, domain in (("subnormal", "y", (0.54, 1)), ("zero", "y2", (0, 0.46))):
        shares = [getattr(of.classes(), share) / of.classes().total for _, of in judged]
        floor, top = decades(shares)
        ends = []
        for (run, of), line_of in zip(judged, shares, strict=True):
            heights = height_of(line_of, floor)
            said = [f"{percent(each)} {share}" for each in line_of.tolist()]
            trace = line(*of.pieces, heights, of.window, said, yaxis=axis, line=run.line)
            # The legend has room for each run only once.
            traces.append({**trace, **hovered(run), "showlegend": axis == "y"})
            newest = of.newest.of("last_share")[0, CLASSES.index(share)]
            ends.append((float(heights[-1]), run.beside(percent(float(newest))), run))
        labels += apart(ends, (floor, top), (height - 48) * 0.46, view, yref=axis)
        axes[f"yaxis{axis[1:]}"] = y_axis(
            range=[floor, top], domain=domain, title={"text": share}, **ticks(floor, top)
        )
    words = "Shares of gradient elements at sampled steps; the newest beside each line."
    return chart(
        traces,
        [run for run, _ in judged],
        frame,
        height=height,
        caption=words + notes,
        annotations=labels,
        anchor="y2",
        meta={"bases": {"y": 10, "y2": 10}},
        **axes,
    )


COMPARED: Mapping[str, ComparedChart] = {
    "logged": logged,
    "scale": scale,
    "skips": skips,
    "fate": fate,
}
"""Every chart of several runs, by name."""


def _cut(runs: Sequence[Compared], view: View) -> tuple[list[tuple[Compared, Window]], Window]:
    """Cut each run to the view. Return the runs with an update in view and their windows, and one around them all."""
    cuts = [(run, cut(run.source, view, run.started)) for run in runs]
    windows = [(run, window) for run, window in cuts if len(window.updates)]
    return windows, frame_of([(window.low, window.high) for _, window in windows], view)


def _named(trace: Trace, run: Compared) -> Trace:
    """Style the scale of one of several runs. The hover text names the run and the step, whatever x is."""
    said = {"hovertemplate": "%{text}, step %{customdata:,d}"}
    return {**trace, **hovered(run), **said, "line": {**trace["line"], **run.line}}
