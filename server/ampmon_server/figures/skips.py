"""Skipped updates: a rug of where each one is, and bars of how many there are. Knows no causes."""

from __future__ import annotations

import itertools

import numpy as np

from ampmon_server.downsample import Columns, aligned_columns, aligned_span, pixel_columns
from ampmon_server.figures.layout import (
    Figure,
    Trace,
    empty,
    figure,
    plot_x,
    y_axis,
)
from ampmon_server.figures.scale import why_no_updates
from ampmon_server.figures.source import Source, View, Window, cut, x_of
from ampmon_server.figures.typed import typed
from ampmon_server.figures.words import count, percent, steps
from ampmon_server.series import Ints, UpdateSeries, take


BAR_PIXELS = 8
"""A bar is about this wide."""

META = {
    "title": "Skipped updates",
    "definitions": {
        "skipped": "An update in which any optimizer on any rank found an inf or a NaN in its gradients "
        "and left the weights alone.",
        "update": "One scaler.update() after at least one scaler.step(): one iteration.",
    },
}


def skips(source: Source, view: View) -> Figure:
    """Every skip in the window, counted once in the rug and once in the bars; no count is estimated."""
    window = cut(source, view)
    updates = window.updates
    if not len(updates):
        return empty(META, why_no_updates(source, view))
    columns = _bar_columns(window, view)
    counts = columns.add(updates.skipped)
    top = max(int(counts.max()), 1)
    per_bar = int(columns.sizes.max())
    return figure(
        [_bars(window, columns, counts, view), *_rug(window, view, top)],
        window,
        view,
        height=168,
        meta={**META, "caption": _caption(updates, per_bar)},
        # The rug lies below zero.
        yaxis=y_axis(range=[-0.24 * top, 1.12 * top], tickformat=",d", **_count_ticks(top)),
        bargap=0,
    )


def _bar_columns(window: Window, view: View) -> Columns:
    x = x_of(window.updates, view)
    return aligned_columns(x, _span(window, view))


def _span(window: Window, view: View) -> int:
    return aligned_span(window.low, window.high, max(view.columns // BAR_PIXELS, 2))


def _bars(window: Window, columns: Columns, counts: Ints, view: View) -> Trace:
    """Bars over the columns that hold a skip, each as wide as the stretch of x that it counts."""
    x = x_of(window.updates, view)
    held = np.flatnonzero(counts)
    span = _span(window, view)
    middles = x[columns.starts[held]] // span * span + (span - 1) / 2
    width = span if view.x == "step" else span / 1000
    return {
        "type": "bar",
        "name": "skipped updates",
        "x": plot_x(middles, view),
        "y": typed(counts[held]),
        "width": width,
        "marker": {
            "color": "role:skip",
            "opacity": 0.6,
            "line": {"width": 1, "color": "role:background"},
        },
        "text": [_say(window.updates, columns, column) for column in held.tolist()],
        "textposition": "none",
        "hoverinfo": "text",
    }


def _say(updates: UpdateSeries, columns: Columns, column: int) -> str:
    within = take(updates, np.arange(columns.starts[column], columns.ends[column] + 1))
    return f"{steps(int(within.step[0]), int(within.step[-1]))}<br>{_of(within)}"


def _rug(window: Window, view: View, top: int) -> list[Trace]:
    """A mark in each pixel column that holds a skip, at the newest of them."""
    skipped = take(window.updates, np.flatnonzero(window.updates.skipped))
    if not len(skipped):
        return []
    x = x_of(skipped, view)
    columns = pixel_columns(x, window.low, window.high, view.columns)
    ends = zip(
        skipped.step[columns.starts].tolist(), skipped.step[columns.ends].tolist(), strict=True
    )
    return [
        {
            "type": "scatter",
            "name": "skips",
            "mode": "markers",
            "marker": {
                "symbol": "line-ns-open",
                "size": 10,
                "color": "role:skip",
                "line": {"width": 1.5},
            },
            "x": plot_x(x[columns.ends], view),
            "y": [-0.12 * top] * len(columns),
            "customdata": typed(columns.sizes),
            "text": [
                f"{steps(first, last)}<br>{count(int(size))} skipped"
                for (first, last), size in zip(ends, columns.sizes, strict=True)
            ],
            "hoverinfo": "text",
        }
    ]


def _count_ticks(top: int) -> dict[str, list[int]]:
    """Whole numbers, at most four of them: multiples of 1, 2 or 5 times a power of ten."""
    strides = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    stride = next(stride for stride in strides if top // stride <= 3)
    return {"tickvals": list(range(0, top + 1, stride))}


def _of(updates: UpdateSeries) -> str:
    skipped, total = int(updates.skipped.sum()), len(updates)
    return f"{count(skipped)} of {count(total)} updates skipped ({percent(skipped / total)})"


def _caption(updates: UpdateSeries, per_bar: int) -> str:
    where = steps(int(updates.step.min()), int(updates.step.max()))
    if not updates.skipped.any():
        return f"No update skipped in {where}: {count(len(updates))} of {count(len(updates))} changed the weights."
    bars = f" A bar counts up to {count(per_bar)} updates." if per_bar > 1 else ""
    return f"{_of(updates)} in {where}.{bars}"
