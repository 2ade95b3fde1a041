"""The number of skipped updates, as bars."""

from __future__ import annotations

import itertools

import numpy as np

from ampmon_server.charts.parts.chart import chart
from ampmon_server.charts.parts.layout import Figure, figure, y_axis
from ampmon_server.charts.parts.traces import Trace, bars
from ampmon_server.charts.parts.window import Window, rows
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.words import count, percent, pruned, steps


BAR_PIXELS = 8
"""The approximate width of a bar."""


@chart(
    title="Skipped steps",
    needs="updates",
    order=20,
    reads="updates",
    choices=("rank",),
    definitions={
        "skipped": "A step in which any optimizer on any rank found an inf or a NaN in its gradients "
        "and left the weights alone.",
        "step": "One scaler.update() after at least one scaler.step(): one iteration.",
    },
)
def skips(window: Window) -> Figure:
    """Draw every skip in the window, counted once. No count is estimated."""
    columns, span = window.columns(window.updates, window.view.columns // BAR_PIXELS)
    top = max(int(columns["skipped"].max()), 1)
    return figure(
        [_bars(window, columns, span)],
        window,
        height=144,
        stacked=52,
        caption=_caption(window, int(columns["n"].max())),
        yaxis=y_axis(range=[0, 1.12 * top], tickformat=",d", **_count_ticks(top)),
        bargap=0,
    )


def _bars(window: Window, columns: Cells, span: float) -> Trace:
    """Draw bars over the columns that hold a skip, each as wide as the stretch of x that it counts.

    If x is not the step, a bar counts the whole cells that begin in its stretch.
    """
    held = columns[columns["skipped"] > 0]
    # A step is the centre of an interval of length 1; the user's own steps are points on a continuous axis.
    half = span / 2 if window.view.x == "user" else (span - 1) / 2
    middles = np.floor_divide(window.x.at(held, "first"), span) * span + half
    outline = {"width": 1, "color": "role:background"}
    said = [
        f"{steps(first, last)}<br>{_of(skipped, total, ' steps') if total > 1 else 'skipped'}"
        for first, last, skipped, total in rows(held, "first", "last", "skipped", "n")
    ]
    marker = {"color": "role:skip", "opacity": 0.6, "line": outline}
    width = span / 1000 if window.view.x == "time" else span
    x, y = window.plot(middles), held["skipped"]
    return bars(x, y, said, marker, name="skipped steps", width=width)


def _count_ticks(top: int) -> dict[str, list[int]]:
    """At most three whole numbers, which fit a stacked chart: multiples of 1, 2 or 5 times a power of ten."""
    strides = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    stride = next(stride for stride in strides if top // stride <= 2)
    return {"tickvals": list(range(0, top + 1, stride))}


def _of(skipped: int, total: int, what: str = "") -> str:
    return f"{count(skipped)} of {count(total)}{what} skipped ({percent(skipped / total)})"


def _caption(window: Window, per_bar: int) -> str:
    cell, where = window.all_updates[0], steps(*window.steps)
    gone = pruned(window.pruned_before)
    if not cell["skipped"]:
        return f"No step skipped in {where}.{gone}"
    bars = f" A bar counts up to {count(per_bar)} steps." if per_bar > 1 else ""
    of = _of(int(cell["skipped"]), int(cell["n"]))
    return f"{of} in {where}.{bars}{gone}"
