"""A value that several runs logged, one line per run: unchanged or smoothed, with the baseline's band. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampmon_server.charts.parts.layout import Figure, choice, empty, y_axis
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, band, scatter
from ampmon_server.charts.parts.window import Window, axis_of, ends, in_view, typed
from ampmon_server.charts.scalars import columns_of, how_far, points_of, reaching
from ampmon_server.charts.together import (
    COLOURS,
    Compared,
    apart,
    chart,
    frame_of,
    hovered,
    left_out,
    nothing_of,
    ownless,
    side_by_side,
    tall,
)
from ampmon_server.model.aggregates.departure import SMOOTH, smoothed
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import mean
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, digits_of


SMOOTHINGS = (0, 5, SMOOTH, 65)
LONG = 8 * SMOOTH
"""From this many values on, a line through all of them hides the trend, so it is smoothed by default."""


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of a run: ``value`` [p] at ``x`` [p] and ``step`` [p], and the window with the run's own x.

    If there are few runs, a smoothed line is drawn over ``beneath``, the line that it smooths.
    """

    run: Compared
    x: Ints | Floats
    step: Ints
    value: Floats
    window: Window
    beneath: _Line | None = None


@side_by_side(
    "Logged value",
    {
        "value": "A value passed to ampmon.log. If several fall into one column of pixels, the first, last, smallest "
        "and largest are drawn. When smoothed, the line is the running median of the columns' means, over a "
        "faint line of all values.",
        "band": f"The running median of {SMOOTH} columns of the baseline, and two standard deviations of its noise on "
        "each side. A run leaves it where its own median stays outside for as many columns.",
    },
)
def logged(runs: Sequence[Compared], view: View) -> Figure | str:
    """Draw one name of all runs on one y axis. A circle marks where a run leaves the baseline's band."""
    names = list(
        dict.fromkeys(name for run in runs for name in (*run.source.logged, *run.source.scalars))
    )
    if not names:
        return 'Nothing was logged. Call ampmon.log({"loss": loss}).'
    name = next((name for run in runs for name in run.source.scalars), names[0])
    if view.smooth is None:
        longest = max((len(run.source.scalars.get(name, ())) for run in runs), default=0)
        view = replace(view, smooth=SMOOTH if longest >= LONG or len(runs) > COLOURS else 0)
    meta = {"title": name, "choices": _choices(names, name, view)}
    drawn, frame = _lines(runs, name, view)
    if not drawn:
        why = nothing_of(runs, view, "value", "None of these runs has logged it.")
        return empty(why, **meta)
    beneath = [line.beneath for line in drawn if line.beneath]
    axis = reaching(np.concatenate([line.value for line in (*beneath, *drawn)]), view)
    height, of_runs = tall(len(drawn), 360), [line.run for line in drawn]
    return chart(
        [
            *(_shade(line, axis) for line in drawn if line.run.band),
            *(_faint(line) for line in beneath),
            *(_trace(line) for line in drawn),
            *(_mark(line) for line in drawn if line.run.left),
        ],
        of_runs,
        frame,
        height=height,
        caption=_caption(drawn, view) + left_out(runs, of_runs, view, "value"),
        meta=meta,
        yaxis=y_axis(**axis),
        annotations=_labels(drawn, axis, height, view),
    )


def _lines(runs: Sequence[Compared], name: str, view: View) -> tuple[list[_Line], Window]:
    """Return the lines of the runs that have a value in view, and a window around them all."""
    found = []
    for run in runs:
        x = axis_of(run.source, name, view, run.started)
        cells = run.source.scalars.get(name)
        if cells is not None and not ownless(run, view) and len(seen := in_view(cells, x, view)):
            found.append((run, seen, x))
    frame = frame_of([ends([seen], x, view) for _, seen, x in found], view)
    few = len(runs) <= COLOURS
    return [_line(run, cells, replace(frame, x=x), few) for run, cells, x in found], frame


def _line(run: Compared, cells: Cells, window: Window, few: bool) -> _Line:
    columns, smooth = columns_of(cells, window), window.view.smooth
    if not smooth:
        return _Line(run, *points_of(columns, window), window)
    beneath = _Line(run, *points_of(columns, window), window) if few else None
    value = mean(columns)
    known = np.isfinite(value)
    value[known] = smoothed(value[known], smooth)
    x = window.x.at(columns, "first")
    step = window.x.steps(columns["first"], columns["time_first"])
    return _Line(run, x, step, value, window, beneath)


def _scatter(of: _Line, x: Ints | Floats, y: Floats, mode: str, **keys: Any) -> Trace:
    return scatter(of.window.plot(x), y, mode, **{**hovered(of.run), **keys})


def _faint(line: _Line) -> Trace:
    """Draw the values beneath a smoothed line, faintly, to show how far they are from it."""
    thin = {"color": line.run.line["color"], "width": 1}
    hidden: Trace = {"showlegend": False, "hoverinfo": "skip", "opacity": 0.3}
    return _scatter(line, line.x, line.value, "lines", line=thin, **hidden)


def _trace(line: _Line) -> Trace:
    return _scatter(
        line,
        line.x,
        line.value,
        "lines" if len(line.x) > 1 else "markers",
        line=line.run.line,
        marker={"color": line.run.line["color"]},
        customdata=typed(line.step),
        hovertemplate="%{y:.6g}, step %{customdata:,d}",
    )


def _shade(line: _Line, axis: dict[str, Any]) -> Trace:
    """Draw the baseline's band, as far as it is in view."""
    found, window = line.run.band, line.window
    assert found is not None
    x = window.x.at(found.cells, "first")
    seen = (x >= window.low) & (x <= window.high)
    if not seen.any():
        none = np.zeros(0)
        return band(none, none, none, none, window)
    floor = 10 ** axis["range"][0] if axis.get("type") == "log" else -math.inf
    low, high = (np.maximum(end[seen], floor) for end in (found.low, found.high))
    fill = {"fillcolor": line.run.line["color"], "opacity": 0.18, "name": "band"}
    return band(*window.held(x[seen]), low, high, window, **fill)


def _mark(line: _Line) -> Trace:
    left, window = line.run.left, line.window
    assert left is not None
    step, time = np.array([left.step]), np.array([left.time])
    at, shown_step = window.x.of(step, time), window.x.steps(step, time)[0]
    known = np.isfinite(line.value)
    shown = known.any() and window.low <= at[0] <= window.high
    at = at[: int(shown)]
    height = np.interp(at, line.x[known], line.value[known]) if shown else np.zeros(0)
    circle = {"symbol": "circle-open", "size": 13, "color": line.run.line["color"]}
    said = f"{left.side} the baseline's band from step {count(shown_step)} on"
    return _scatter(
        line,
        at,
        height,
        "markers",
        showlegend=False,
        marker={**circle, "line": {"width": 2}},
        text=[said] * len(at),
        hovertemplate="%{text}",
    )


def _labels(
    drawn: Sequence[_Line], axis: dict[str, Any], height: int, view: View
) -> list[dict[str, Any]]:
    """Label the newest value of each run, at the height of its newest finite value."""
    ends_of = []
    is_log = axis.get("type") == "log"
    for line in drawn:
        # If the clock was set back, the newest value is not the last one on a time axis.
        value = line.value[np.argsort(line.step, kind="stable")]
        known = value[np.isfinite(value) & ((value > 0) | (not is_log))]
        if len(known):
            newest = float(known[-1])
            at = math.log10(newest) if is_log else newest
            words = digits_of(newest) if np.isfinite(value[-1]) else "not finite"
            ends_of.append((at, line.run.beside(words), line.run))
    if "range" not in axis:
        return []
    return apart(ends_of, (axis["range"][0], axis["range"][1]), height - 48, view)


def _choices(names: Sequence[str], name: str, view: View) -> list[dict[str, Any]]:
    smoothings = [
        (str(each), f"median of {each} columns" if each else "not smoothed") for each in SMOOTHINGS
    ]
    return [
        choice("name", "Logged value", name, [(each, each) for each in names]),
        choice("smooth", "Smoothing", str(view.smooth), smoothings),
        how_far(view),
    ]


def _caption(drawn: Sequence[_Line], view: View) -> str:
    over = "; the faint line shows all values" if any(line.beneath for line in drawn) else ""
    smooth = (
        f"Each line is the running median of {view.smooth} columns{over}. " if view.smooth else ""
    )
    caption = f"{smooth}Labels show the latest value."
    if any(line.run.band for line in drawn):
        caption += " The band is the baseline's, with two standard deviations of its noise."
    if any(line.run.left for line in drawn):
        caption += " A circle marks where a run leaves it."
    return caption
