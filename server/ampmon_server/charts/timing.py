"""The time from one update to the next, and the peak memory of the device where it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ampmon_server.charts.parts.chart import chart
from ampmon_server.charts.parts.layout import (
    Figure,
    figure,
    log_axis,
    panel_label,
    ticks,
    x_axis,
    y_axis,
)
from ampmon_server.charts.parts.traces import Trace, band, broken
from ampmon_server.charts.parts.window import Window, rows
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.series import Floats
from ampmon_server.model.words import SPACE, magnitude_of, steps


@chart(
    title="Time and memory",
    needs="updates",
    order=130,
    reads="updates",
    tab="system",
    choices=("rank",),
    definitions={
        "time per step": "From one scaler.update() to the next, by the monotonic clock: data loading, evaluation and "
        "checkpoints included. The line is the mean of a column of pixels, and the band reaches up "
        "to the longest.",
        "peak memory": "The most memory allocated on the device, from torch.cuda.max_memory_allocated(), read when a "
        "gradient is sampled. Not available on a CPU.",
    },
)
def timing(window: Window) -> Figure | str:
    """Draw the mean and the longest time of each pixel column on a log axis and, below, the peak memory if known."""
    cells = window.updates
    timed = cells[(cells["timed"] > 0) & (cells["duration_ns"] > 0)]
    measured = cells[cells["memory_peak"] > 0]
    if not len(timed) and not len(measured):
        return "No step time: it is measured from the second step of a process on."
    traces = _times(timed, window) if len(timed) else []
    below: dict[str, Any] = {}
    if both := len(measured) > 0:
        traces.append(_memory(measured, window))
        labels = [panel_label("time per step", 1), panel_label("peak memory", 0.46)]
        below = {"yaxis2": _memory_axis(measured), "annotations": labels}
    return figure(
        traces,
        window,
        height=272 if both else 176,
        caption=_caption(timed, measured),
        xaxis={**x_axis(window), "anchor": "y2" if both else "y"},
        yaxis=_time_axis(timed, [0.52, 0.94] if both else [0, 1]),
        **{"annotations": [], **below},
    )


def _mean(cells: Cells) -> Floats:
    """The mean time of each cell, in seconds."""
    return np.asarray(cells["duration_ns"] / cells["timed"] / 1e9, np.float64)


def _times(cells: Cells, window: Window) -> list[Trace]:
    mean, most = _mean(cells), cells["duration_max_ns"] / 1e9
    said = [
        f"{where}: {_seconds(each)}" + (f"<br>the longest {_seconds(top)}" if top > each else "")
        for where, each, top in zip(_where(cells), mean.tolist(), most.tolist(), strict=True)
    ]
    line = _line("time per step", cells, mean, said, window)
    if not (most > mean).any():
        return [line]
    fill: Trace = {"name": "to the longest", "fillcolor": "role:accent", "opacity": 0.2}
    return [band(*window.held(window.x.at(cells, "first")), mean, most, window, **fill), line]


def _memory(cells: Cells, window: Window) -> Trace:
    peak = cells["memory_peak"].astype(np.float64)
    peaks = zip(_where(cells), peak.tolist(), strict=True)
    said = [f"{where}: {_bytes(each)}" for where, each in peaks]
    return {**_line("peak memory", cells, peak, said, window), "yaxis": "y2"}


def _line(name: str, cells: Cells, y: Floats, said: list[str], window: Window) -> Trace:
    style = {"shape": "hv", "color": "role:accent", "width": 1.5}
    mode = "lines" if len(cells) > 1 else "markers"
    points = broken(window.x.at(cells, "first"), window.gaps)
    return points.line(y, window, said, name=name, mode=mode, line=style, hoverinfo="text")


def _where(cells: Cells) -> list[str]:
    return [steps(first, last) for first, last in rows(cells, "first", "last")]


def _time_axis(cells: Cells, domain: list[float]) -> dict[str, Any]:
    if not len(cells):
        return y_axis(type="log", domain=domain, range=[-3, 0])
    low, high = _mean(cells).min(), cells["duration_max_ns"].max() / 1e9
    return log_axis(math.log10(low), math.log10(high), _seconds, at_most=4, domain=domain)


def _memory_axis(cells: Cells) -> dict[str, Any]:
    top = 1.15 * float(cells["memory_peak"].max())
    named = ticks({at: _bytes(at) for at in (0, 0.5 * top / 1.15, top / 1.15)})
    return y_axis(range=[0, top], domain=[0, 0.4], **named)


def _in_units(number: float, units: Mapping[str, float]) -> str:
    """Three digits, in the largest unit of which there is at least one."""
    rounded = float(f"{number:.3g}")
    for unit, size in units.items():  # noqa: B007 - the last one if none fits
        if rounded >= size:
            break
    return f"{magnitude_of(rounded / size)}{SPACE}{unit}"


_seconds = partial(
    _in_units, units={"d": 86400.0, "h": 3600.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
)
_bytes = partial(_in_units, units={"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0})


def _caption(timed: Cells, measured: Cells) -> str:
    said = []
    if len(timed):
        mean = float(timed["duration_ns"].sum() / timed["timed"].sum() / 1e9)
        longest = float(timed["duration_max_ns"].max()) / 1e9
        said.append(f"{_seconds(mean)} per step on average, {_seconds(longest)} at most.")
        if len(timed) > 1 and (timed["n"] == 1).all():
            half, most = np.percentile(_mean(timed), (50, 95), method="inverted_cdf")
            said.append(f"Median {_seconds(half)}, 95th percentile {_seconds(most)}.")
    if len(measured):
        said.append(f"At most {_bytes(float(measured['memory_peak'].max()))} of device memory.")
    else:
        said.append("Peak memory is unknown: only CUDA devices report it.")
    return " ".join(said)
