"""Two to eight runs on one axis: their scales, which updates each skipped, and what fp16 made of their gradients. Pure.

Each run has a colour and a dash of its own, and its name stands at the end of its line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampmon_server.cells.gradients import SHARES as CLASSES
from ampmon_server.cells.merging import Cells
from ampmon_server.figures.bands import held, line
from ampmon_server.figures.elapsed import elapsed
from ampmon_server.figures.judged import GRID_DEFINITION, judge
from ampmon_server.figures.layout import (
    DEAD,
    ENDLESS,
    NO_USER_STEPS,
    Figure,
    Trace,
    beside,
    empty,
    escaped,
    figure,
    legend_top,
    log2_scale,
    nothing_here,
    plot_x,
    powers_of_two,
    shortened,
    x_axis,
    y_axis,
)
from ampmon_server.figures.scale import stepped
from ampmon_server.figures.source import Source, View, Window, cut
from ampmon_server.figures.typed import typed
from ampmon_server.figures.underflow import ticks
from ampmon_server.words import count, percent, power, steps


RUNS_MAX = 8
DASHES = (
    "solid",
    "dash",
    "dot",
    "dashdot",
    "longdash",
    "longdashdot",
    "8px 3px 2px 3px",
    "2px 6px",
)
NAME_MAX, LINE_MAX = 12, 18
"""Letters that there is room for beside a plot: of a name, and in all. On hover a longer name is whole."""
NAMED_MAX = 4
"""Of more runs a legend would be taller than a phone's plot: there the list of the runs has each one's line."""
SHARES = ("subnormal", "zero")
NO_UPDATE = "None of these runs has an update yet."
OFF_GRID = "for no finite gradient of theirs is on fp16's grid, and others say nothing about fp16"
ROW = 32
"""Pixels that each run has in the rug of skips."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the runs that are compared: its name, the place of its colour, and what is drawn of it.

    ``started`` is its start in us since the epoch: where x is time, it is the time since then.
    """

    name: str
    place: int
    source: Source
    started: int = 0

    @property
    def role(self) -> str:
        return f"run-{self.place + 1}"

    @property
    def label(self) -> str:
        """Its name beside a plot: inert, in its own direction, and not too long."""
        return self.beside("")

    def beside(self, value: str) -> str:
        """Its name and a value of it, in one line beside a plot: the value is whole."""
        most = min(NAME_MAX, LINE_MAX - len(value))
        cut_off = self.name if len(self.name) <= most else self.name[: most - 1] + "…"
        return f"\u2068{escaped(cut_off)}\u2069 {value}".strip()

    @property
    def line(self) -> dict[str, Any]:
        return {"color": f"role:{self.role}", "width": 1.5, "dash": DASHES[self.place]}


def _meta(title: str, definitions: Mapping[str, str]) -> dict[str, Any]:
    return {"title": title, "definitions": definitions}


_SCALE = _meta(
    "Loss scale",
    {
        "loss scale": "What the loss is multiplied by before backward. Drawn of each run's first scaler."
    },
)
_SKIPS = _meta(
    "Skipped updates",
    {
        "skipped": "An update in which any optimizer on any rank found an inf or a NaN in its gradients and left the "
        "weights alone. A mark may stand for several; the counts beside the plot are of all in view."
    },
)
_FATE = _meta(
    "Gradient lost in fp16",
    {
        "subnormal": "2⁻²⁴ and above, below 2⁻¹⁴: held with fewer bits the smaller they are.",
        "zero": "Exactly zero, whether fp16 flushed it or it always was.",
        "fp16's grid": GRID_DEFINITION,
    },
)


def scale(runs: Sequence[Compared], view: View) -> Figure:
    """The scale of each run: at most four points a pixel column, its extremes among them."""
    drawn, frame = _cut(runs, view)
    if not drawn:
        return empty(_SCALE, _nothing(runs, view, "update", NO_UPDATE))
    ends = [cells.all_updates[0] for _, cells in drawn]
    low, high = _span(np.array([[end["scale_min"], end["scale_max"]] for end in ends]))
    newest = log2_scale(np.array([end["after_last"] for end in ends]))
    labels = [
        (float(at), f"{run.label} {power(float(at)) if DEAD < at < ENDLESS else ''}", run)
        for at, (run, _) in zip(newest, drawn, strict=True)
        if math.isfinite(at)
    ]
    return _figure(
        [_named(stepped(window, view), run) for run, window in drawn],
        [run for run, _ in drawn],
        frame,
        view,
        height=320,
        meta={
            **_SCALE,
            "caption": "Labels show the latest value."
            + _left_out(runs, [run for run, _ in drawn], view, "update"),
        },
        yaxis=y_axis(range=[low, high], **powers_of_two(low, high)),
        annotations=_apart(labels, (high - low) * 0.055, view),
    )


def skips(runs: Sequence[Compared], view: View) -> Figure:
    """A row of marks for each run, and how many of its updates in view were skipped: exact, however wide a mark."""
    drawn, frame = _cut(runs, view)
    if not drawn:
        return empty(_SKIPS, _nothing(runs, view, "update", NO_UPDATE))
    labels = []
    for row, (run, window) in enumerate(drawn):
        all_of = window.all_updates[0]
        skipped, total = int(all_of["skipped"]), int(all_of["n"])
        words = f"{run.label}<br>{count(skipped)} of {count(total)} ({percent(skipped / total)})"
        labels.append(beside(-row, words, run.role, view))
    return _figure(
        [_rug(run, window, row, view) for row, (run, window) in enumerate(drawn)],
        [run for run, _ in drawn],
        frame,
        view,
        height=64 + ROW * len(drawn),
        meta={
            **_SKIPS,
            "caption": "Ticks mark skipped steps."
            + _left_out(runs, [run for run, _ in drawn], view, "update"),
        },
        yaxis=y_axis(range=[0.6 - len(drawn), 0.6], showticklabels=False, tickvals=[]),
        annotations=labels,
    )


def fate(runs: Sequence[Compared], view: View) -> Figure:
    """The share of subnormal and of zero elements, of all samples in a column, on log scales."""
    drawn, frame = _cut(runs, view)
    found = [(run, window, of) for run, window in drawn if (of := judge(window, view))]
    judged = [each for each in found if each[2].side == "on"]
    told = _without(OFF_GRID, [run for run, _, of in found if of.side == "off"])
    told += _left_out(runs, [run for run, _, _ in found], view, "sample")
    if not judged:
        none = _nothing(runs, view, "sample", "No gradient of these runs is sampled yet.")
        return empty(_FATE, told.strip() if found else none)
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
            # A run is in the legend once, of which there is room for no more.
            traces.append({**trace, **_hovered(run), "showlegend": panel == 0})
            newest = of.newest.of("last_share")[0, CLASSES.index(share)]
            ends.append((float(heights[-1]), run.beside(percent(float(newest))), run))
        labels += _apart(ends, (top - floor) * 0.12, view, yref=axis)
        axes[f"yaxis{axis[1:]}"] = y_axis(
            range=[floor, top], domain=domain, title={"text": share}, **ticks(floor, top)
        )
    return _figure(
        traces,
        [run for run, _, _ in judged],
        frame,
        view,
        height=400,
        meta={
            **_FATE,
            "caption": "Shares of gradient elements at sampled updates; the newest beside each line."
            + told,
        },
        annotations=labels,
        anchor="y2",
        **axes,
    )


def _nothing(runs: Sequence[Compared], view: View, what: str, before: str) -> str:
    """Why nothing of any run is drawn."""
    if all(_ownless(run, view) for run in runs):
        return NO_USER_STEPS
    return nothing_here(view, what, before)


def _ownless(run: Compared, view: View) -> bool:
    """Whether x is the user's own step, and the run was given none."""
    return view.x == "user" and run.source.user is None


def _left_out(runs: Sequence[Compared], drawn: Sequence[Compared], view: View, what: str) -> str:
    """Sentences on the runs of which no ``what`` is in view."""
    places = {run.place for run in drawn}
    gone = [run for run in runs if run.place not in places]
    own, others = (
        [run for run in gone if _ownless(run, view) is ownless] for ownless in (True, False)
    )
    return _without("for no step of their own was logged", own) + _without(
        f"for no {what} of theirs is in view", others
    )


def _without(why: str, runs: Sequence[Compared]) -> str:
    """A sentence, with a blank before it, on runs that are not drawn; nothing where there are none."""
    names = ", ".join(f"\u2068{shortened(run.name, 2 * NAME_MAX)}\u2069" for run in runs)
    return f" Not drawn, {why}: {names}." if runs else ""


COMPARED: Mapping[str, Callable[[Sequence[Compared], View], Figure]] = {
    "scale": scale,
    "skips": skips,
    "fate": fate,
}
"""Every chart of several runs, by its name."""


def since(cells: Cells, started: int) -> Cells:
    """Cells whose times are counted from ``started``."""
    moved = cells.copy()
    for name in cells.dtype.names or ():
        if "time" in name and name != "timed":
            moved[name] -= started
    return moved


def _cut(runs: Sequence[Compared], view: View) -> tuple[list[tuple[Compared, Window]], Window]:
    """The runs, of which there must be one, that have an update in view, each cut to it; and a window around them all
    that has nothing in it."""
    if view.x == "time":
        runs = [replace(run, source=_since(run)) for run in runs]
    windows = [(run, cut(run.source, view)) for run in runs]
    found = [(run, window) for run, window in windows if len(window.updates)]
    low = min((window.low for _, window in found), default=0)
    high = max((window.high for _, window in found), default=0)
    some = windows[0][1]
    around = replace(
        some, low=low, high=high, updates=some.updates[:0], gradients=some.gradients[:0]
    )
    return found, around


def _since(run: Compared) -> Source:
    source = run.source
    return replace(
        source,
        updates=since(source.updates, run.started),
        gradients=since(source.gradients, run.started),
    )


def _figure(
    traces: list[Trace],
    runs: Sequence[Compared],
    frame: Window,
    view: View,
    *,
    height: int,
    anchor: str = "y",
    **layout: Any,
) -> Figure:
    """A chart of several runs; a legend on a phone, where no label fits beside a plot, of no more than fit above."""
    named = [run.label for run in runs] if view.narrow and len(runs) <= NAMED_MAX else []
    if view.narrow:
        layout["annotations"] = []
    axis = x_axis(frame, view) | {"anchor": anchor}
    return figure(
        traces,
        frame,
        view,
        height=height,
        top=legend_top(named, view),
        showlegend=bool(named),
        hovermode="closest",
        xaxis=axis | elapsed(frame) if view.x == "time" else axis,
        **layout,
    )


def _named(trace: Trace, run: Compared) -> Trace:
    """A run's scale: of several runs what is hovered has to say whose it is, and where, whatever x is."""
    said = {"hovertemplate": "%{text}, step %{customdata:,d}"}
    return {**trace, **_hovered(run), **said, "line": {**trace["line"], **run.line}}


def _hovered(run: Compared) -> dict[str, Any]:
    """A run's own name and colour for a trace of it."""
    return {
        "name": f"\u2068{escaped(run.name)}\u2069" if len(run.name) <= 2 * NAME_MAX else run.label,
        "hoverlabel": {"namelength": -1},
        "legendgroup": run.role,
        "showlegend": True,
    }


def _rug(run: Compared, window: Window, row: int, view: View) -> Trace:
    held_by = window.updates[window.updates["skipped"] > 0]
    told = zip(
        *(held_by[name].tolist() for name in ("skip_first", "skip_last", "skipped")), strict=True
    )
    return {
        "type": "scatter",
        **_hovered(run),
        "mode": "markers",
        "marker": {
            "symbol": "line-ns-open",
            "size": 14,
            "color": f"role:{run.role}",
            "line": {"width": 1.5},
        },
        "x": plot_x(window.x.at(held_by, "skip"), view),
        "y": [-row] * len(held_by),
        "customdata": typed(held_by["skipped"]),
        "text": [f"{steps(first, last)}: {count(number)} skipped" for first, last, number in told],
        "hovertemplate": "%{text}",
    }


def _apart(
    labels: Sequence[tuple[float, str, Compared]], gap: float, view: View, **keys: Any
) -> list[dict[str, Any]]:
    """Labels beside the plot at their heights, moved up where they would overlap."""
    placed, lowest = [], -math.inf
    for height, words, run in sorted(labels, key=lambda label: label[0]):
        at = max(height, lowest)
        placed.append(beside(at, words, run.role, view, **keys))
        lowest = at + gap
    return placed


def _span(scales: Any) -> tuple[float, float]:
    heights = log2_scale(scales.astype(np.float64))
    finite = heights[np.isfinite(heights)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    middle, half = (low + high) / 2, max((high - low) / 2, 2.0)
    return middle - half * 1.15 - 0.25, middle + half * 1.15 + 0.25


def _decades(shares: Sequence[Any]) -> tuple[float, float]:
    """Whole decades around all shares, the floor, where zero is drawn, one further down."""
    seen = np.concatenate([np.asarray(each, np.float64).ravel() for each in shares])
    seen = seen[seen > 0]
    low = float(np.clip(np.floor(np.log10(seen.min())), -7, -1)) if len(seen) else -3.0
    return low - 1, 0.1
