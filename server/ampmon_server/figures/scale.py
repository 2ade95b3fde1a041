"""The loss scale: a stepped line of log2(scale), and marks where it moved. Skips have a chart of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampmon_server.downsample import aligned_columns, aligned_span, pixel_columns
from ampmon_server.figures.layout import (
    Figure,
    Trace,
    beside,
    empty,
    figure,
    level,
    nothing_here,
    plot_x,
    powers_of_two,
    y_axis,
)
from ampmon_server.figures.source import Source, View, Window, cut, x_of
from ampmon_server.figures.typed import typed
from ampmon_server.figures.words import count, plural, power, power_of_two, steps
from ampmon_server.series import EVENTS, Flags, Floats, UpdateSeries, take


DEAD = -128
"""1/scale is not finite in fp32 for scales of at most 2 to this power."""
ENDLESS = 128
"""fp32 holds no power of two from here on."""

MARK_PIXELS = 6
"""Marks closer than this are drawn as one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How one event of an update is drawn and called."""

    event: str
    role: str
    symbol: str
    one: str
    many: str


MARKS = (
    Mark("grow", "growth", "triangle-up", "growth", "growths"),
    Mark("backoff", "backoff", "triangle-down", "back-off", "back-offs"),
    Mark("grow_capped", "growth", "triangle-up-open", "growth refused", "growths refused"),
    Mark("manual_set", "manual", "square", "set by hand", "times set by hand"),
    Mark("dead", "skip", "x", "update at a dead scale", "updates at a dead scale"),
)

META = {
    "title": "Loss scale",
    "definitions": {
        "loss scale": "What the loss is multiplied by before backward, so that small gradients are not lost in fp16.",
        "growth": "The scaler raises its scale after growth_interval updates in a row without an overflow; "
        "it refuses where the new scale would be infinite.",
        "back-off": "The scaler lowers its scale after an update whose gradients held an inf or a NaN.",
        "dead": "At 2^-128 and below, 1/scale is not finite in fp32: every update overflows, "
        "and the scale cannot recover by itself.",
    },
}


def scale(source: Source, view: View) -> Figure:
    """At most four points a pixel column, all its extremes among them; every growth and back-off is counted."""
    window = cut(source, view)
    if not len(window.updates):
        return empty(META, why_no_updates(source, view))
    heights = log2_scale(window.updates.scale)
    low, high = _range(heights)
    marks = [trace for mark in MARKS for trace in _marks(mark, window, heights, view)]
    shapes, labels = _labels(window.updates, heights, view)
    return figure(
        [_line(window, heights, view), *marks],
        window,
        view,
        height=256,
        top=32 if marks else 8,
        meta={**META, "caption": _caption(window.updates)},
        yaxis=y_axis(range=[low, high], **powers_of_two(low, high)),
        shapes=shapes,
        annotations=labels,
        showlegend=bool(marks),
        hovermode="x unified",
    )


def log2_scale(scales: Floats) -> Floats:
    """Where each scale is drawn: a dead one on the floor, an infinite one at 128, NaN or a negative one nowhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heights: Floats = np.clip(np.log2(scales), DEAD, ENDLESS)
    return heights


def why_no_updates(source: Source, view: View) -> str:
    if source.disabled:
        return (
            "This scaler is disabled, as it is for bf16 and on machines without a GPU: "
            "it scales nothing and skips nothing. Pass enabled=True to watch it work."
        )
    return nothing_here(
        view,
        "update",
        "No update yet. The first arrives when training calls scaler.step() and scaler.update().",
    )


def _line(window: Window, heights: Floats, view: View) -> Trace:
    x = x_of(window.updates, view)
    rows = pixel_columns(x, window.low, window.high, view.columns).outline(heights)
    holes = np.flatnonzero(np.diff(np.cumsum(_follows_hole(window.updates))[rows])) + 1
    # The line breaks where steps are missing: a point that is nowhere stands before the first after each hole.
    rows = np.insert(rows, holes, rows[holes])
    drawn = take(window.updates, rows)
    drawn_heights = heights[rows]
    drawn_heights[holes + np.arange(len(holes))] = np.nan
    said = (
        "%{text}<extra></extra>"
        if view.x == "step"
        else "%{text}, step %{customdata:,d}<extra></extra>"
    )
    return {
        "type": "scatter",
        "name": "loss scale",
        "mode": "lines" if len(rows) > 1 else "lines+markers",
        "line": {"shape": "hv", "color": "role:scale", "width": 1.5},
        "showlegend": False,
        "x": plot_x(x[rows], view),
        "y": typed(drawn_heights),
        "text": [power_of_two(scale) for scale in drawn.scale.tolist()],
        "customdata": typed(drawn.step),
        "hovertemplate": said,
    }


def _follows_hole(updates: UpdateSeries) -> Flags:
    """Which updates [n] have no record of the step before them, though of an earlier one."""
    return np.diff(updates.step, prepend=updates.step[:1]) > 1


def _marks(mark: Mark, window: Window, heights: Floats, view: View) -> list[Trace]:
    """The marks of one kind of event; those within a few pixels are one, which says how many it stands for."""
    rows = np.flatnonzero(window.updates.event == EVENTS.index(mark.event))
    if not len(rows):
        return []
    events = take(window.updates, rows)
    x = x_of(events, view)
    span = aligned_span(window.low, window.high, view.columns // MARK_PIXELS)
    columns = aligned_columns(x, span)
    return [
        {
            "type": "scatter",
            "name": mark.one,
            "mode": "markers",
            "marker": {
                "symbol": mark.symbol,
                "size": 9,
                "color": f"role:{mark.role}",
                "line": {"width": 1, "color": f"role:{mark.role}"},
            },
            "x": plot_x(x[columns.ends], view),
            "y": typed(heights[rows][columns.ends]),
            "customdata": typed(columns.sizes),
            "text": [
                _say(mark, take(events, np.arange(first, last + 1)))
                for first, last in zip(columns.starts, columns.ends, strict=True)
            ],
            "hoverinfo": "text",
            "cliponaxis": False,
        }
    ]


def _say(mark: Mark, events: UpdateSeries) -> str:
    where = steps(int(events.step[0]), int(events.step[-1]))
    if len(events) == 1:
        before, after = float(events.scale[0]), float(events.scale_after[0])
        return f"{where}: {mark.one}<br>{power_of_two(before)} → {power_of_two(after)}"
    least, greatest = float(events.scale_after.min()), float(events.scale_after.max())
    return (
        f"{where}: {plural(len(events), mark.one, mark.many)}"
        f"<br>to between {power_of_two(least)} and {power_of_two(greatest)}"
    )


def _range(heights: Floats) -> tuple[float, float]:
    seen = heights[~np.isnan(heights)]
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    middle, half = (low + high) / 2, max((high - low) / 2, 2.0)
    return middle - half * 1.15 - 0.25, middle + half * 1.15 + 0.25


def _labels(updates: UpdateSeries, heights: Floats, view: View) -> tuple[list[Trace], list[Trace]]:
    """Lines and labels: the newest scale, and the floor where a scale is dead."""
    shapes, labels = [], []
    newest = float(log2_scale(updates.scale_after[-1:])[0])
    if DEAD < newest < ENDLESS and not view.narrow:
        when = " now" if view.stop is None else ""
        labels.append(beside(newest, power(newest) + when, "scale", view))
    if (heights <= DEAD).any():
        shapes.append(level(DEAD, "skip", dash="dot"))
        labels.append(
            beside(DEAD, "dead: 1/scale overflows", "skip", view, x=0, xanchor="left", yshift=8)
        )
    return shapes, labels


def _caption(updates: UpdateSeries) -> str:
    moved = {event: int((updates.event == code).sum()) for code, event in enumerate(EVENTS)}
    words = [
        plural(moved[mark.event], mark.one, mark.many)
        for mark in MARKS
        if moved[mark.event] or mark.event in {"grow", "backoff"}
    ]
    unusable = int(np.isnan(log2_scale(updates.scale)).sum())
    gap = (
        f" In {plural(unusable, 'update')} the scale was not a positive number." if unusable else ""
    )
    where = steps(int(updates.step.min()), int(updates.step.max()))
    missing = int(np.ptp(updates.step)) + 1 - len(updates)
    gap += f" There is no record of {plural(missing, 'step')} in between." if missing else ""
    after = power_of_two(float(updates.scale_after[-1]))
    return f"{after} after step {count(int(updates.step[-1]))}. {', '.join(words)} in {where}.{gap}"
