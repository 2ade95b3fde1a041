"""The chart of the loss scale: a stepped line of log2(scale), its headroom, its moves, and the skipped updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon.numerics.histogram import BINS, EXPONENT_MIN
from ampmon_server.charts.parts.chart import chart
from ampmon_server.charts.parts.layout import (
    Figure,
    around,
    beside,
    figure,
    level,
    log2_scale,
    scale_axis,
    x_axis,
    y_axis,
)
from ampmon_server.charts.parts.samples import JudgedGradients, judge, scales
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, band, broken, each_once, markers, rug, scatter
from ampmon_server.charts.parts.window import PLACES, Place, Window, is_whole, typed
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import MOVES, missing
from ampmon_server.model.scale_policy import DEAD, ENDLESS
from ampmon_server.model.series import Flags, Floats, Ints, Resume
from ampmon_server.model.words import count, plural, power, power_of_two, pruned, steps


MARK_PIXELS = 10
"""Marks closer than this, about their own width, are drawn as one."""

STRIP = 0.12
"""The share of the plot's height for the rug of skips below it."""

ROOM_MAX = 12.0
"""At most this many octaves of headroom are drawn above the highest scale."""

MARKED_MAX = 200
"""At most this many starts are marked, the newest."""

_STARTS = (
    ("resumed", False, {"symbol": "diamond-open", "size": 9}),
    ("not restored", True, {"symbol": "star-diamond-open", "size": 11}),
)
"""The names of process starts, whether they lost the scaler's state, and their symbols."""

_POINTS: Mapping[Place, str] = {
    "first": "scale_first",
    "scale_min": "scale_min",
    "scale_max": "scale_max",
    "last": "scale_last",
}
"""The places of a column that are drawn, and the fields that hold their scales."""


@dataclass(frozen=True, slots=True)
class EventMark:
    """How one kind of event is drawn and called."""

    event: str
    role: str
    symbol: str
    one: str
    many: str


_MOVE_FIELDS = (
    "moves",
    "move_first",
    "move_last",
    "move_scale",
    "move_after",
    "move_after_min",
    "move_after_max",
)
"""The fields of a cell that a mark's hover text tells."""

MARKS = (
    EventMark("grow", "growth", "triangle-up", "growth", "growths"),
    EventMark("backoff", "backoff", "triangle-down", "back-off", "back-offs"),
    EventMark("grow_capped", "growth", "triangle-up-open", "growth refused", "growths refused"),
    EventMark("manual_set", "manual", "square", "set manually", "times set manually"),
    EventMark("dead", "skip", "x", "step at a dead scale", "steps at a dead scale"),
)


@chart(
    title="Loss scale",
    needs="updates",
    order=10,
    choices=("rank",),
    definitions={
        "loss scale": "The factor that multiplies the loss before the backward pass, so that small gradients are not "
        "lost in fp16.",
        "growth": "The scaler raises its scale after growth_interval steps in a row without an overflow; "
        "it refuses where the new scale would be infinite.",
        "back-off": "The scaler lowers its scale after a step whose gradients held an inf or a NaN.",
        "not restored": "A resumed run whose scaler began at its init_scale, since load_state_dict() was not "
        "called: it has to find the right scale again, by growing or by skipping.",
        "headroom": "How far the scale could rise before the largest gradient that was sampled would exceed "
        "65\u202f504: the shaded band above the scale. An upper bound, because gradients of activations "
        "overflow first.",
        "skipped": "A step in which a gradient held an inf or a NaN, and the weights were left alone: a mark below "
        "the plot in every column of pixels that holds one.",
        "dead": "At 2⁻¹²⁸ and below, 1/scale is not finite in fp32: every step overflows, "
        "and the scale cannot recover by itself.",
    },
)
def scale(window: Window) -> Figure:
    """Draw at most four points per pixel column, with all its extremes. Every growth and back-off is counted."""
    view, all_of, room = window.view, window.all_updates[0], headroom(window)
    low, high = _range(all_of, room)
    marks = [trace for mark in MARKS for trace in _marks(mark, window)] + _resumed(window)
    shapes, labels = _labels(all_of, room, (low, high), view)
    above = room.traces() if room else []
    hidden = {"name": "skips", "hoverinfo": "text", "showlegend": False, "yaxis": "y2"}
    lost = [rug(window, 0, "skip", 10, "{where}<br>{skips}", **hidden)]
    if view.stacked or not all_of["skipped"]:  # in the stack, the chart of skips is right below
        lost = []
    strip: dict[str, Any] = {} if view.stacked else {"yaxis2": _strip(lost)}
    domain = [STRIP if strip else 0, 1]
    # On other axes than the step, every point stays, because its hover text names its step.
    line = stepped(window, turns=view.x == "step")
    after = float(all_of["after_last"])
    if view.stop is None and after != all_of["scale_last"]:
        line["text"][-1] += f" → {power_of_two(after)}"
    return figure(
        [*above[:1], line, *above[1:], *marks, *lost],  # the band is below the scale's own line
        window,
        height=288,
        stacked=172,
        named=[trace["name"] for trace in marks],
        caption=_caption(all_of, window) + (room.caption if room else ""),
        xaxis={**x_axis(window), "anchor": "y2" if strip else "y"},
        meta={"bases": {"y": 2}},
        yaxis=scale_axis(low, high, domain=domain),
        **strip,
        shapes=shapes,
        annotations=labels,
        hovermode="x unified",
    )


def _strip(lost: list[Trace]) -> dict[str, Any]:
    """The axis of the strip for the ``lost`` steps below the plot."""
    named = {"tickvals": [0], "ticktext": ["skips" if lost else "no skips"]}
    return y_axis(range=[-1, 1], domain=[0, STRIP - 0.03], showgrid=False, **named)


def stepped(window: Window, *, turns: bool = False) -> Trace:
    """Draw the first, last, least and greatest scale of each column, each at its update.

    With ``turns``, draw only the points at which the line turns.
    """
    x, step, scale, holes = points(window)
    if turns:
        kept = _turns(scale, holes)
        x, step, scale, holes = x[kept], step[kept], scale[kept], holes[kept]
    # A NaN before the first point after each hole breaks the line.
    drawn = np.repeat(np.arange(len(step)), 1 + holes)
    heights = log2_scale(scale[drawn])
    heights[np.flatnonzero(holes) + np.arange(np.count_nonzero(holes))] = np.nan
    step_too = "" if window.view.x == "step" else ", step %{customdata:,d}"
    return scatter(
        window.plot(x[drawn]),
        heights,
        "lines" if len(drawn) > 1 else "lines+markers",
        name="loss scale",
        line={"shape": "hv", "color": "role:scale", "width": 1.5},
        showlegend=False,
        text=[power_of_two(each) for each in scale[drawn].tolist()],
        customdata=typed(step[drawn]),
        hovertemplate=f"%{{text}}{step_too}<extra></extra>",
    )


def _turns(scale: Floats, holes: Flags) -> Flags:
    """Which of the points [p] the line needs: all except those with the same scale as both neighbours."""
    needed = np.ones(len(scale), bool)
    same = (scale[1:] == scale[:-1]) & ~holes[1:]
    needed[1:-1] = ~(same[:-1] & same[1:])
    return needed


def points(window: Window) -> tuple[Ints | Floats, Ints, Floats, Flags]:
    """Return x, step and scale of the drawn points, in order of x, and whether a hole precedes each, [p]."""
    cells = window.updates
    x = np.stack([window.x.at(cells, place) for place in _POINTS], axis=1)
    step = np.stack([cells[PLACES[place][0]] for place in _POINTS], axis=1)
    scale = np.stack([cells[name] for name in _POINTS.values()], axis=1)
    kept, (at, step, scale) = each_once(x, step, scale)
    holes = np.zeros(step.shape, bool)
    if not is_whole(cells):
        holes[1:, 0] = cells["first"][1:] - cells["last"][:-1] > 1
        holes |= (step == cells["last"][:, None]) & (missing(cells) > 0)[:, None]
    return at[kept], step[kept], scale[kept], holes[kept]


def _marks(mark: EventMark, window: Window) -> list[Trace]:
    """Mark one kind of event. Marks within a few pixels become one, which says how many it stands for."""
    kind = MOVES.index(mark.event)
    moved = window.updates[window.updates["moves"][:, kind] > 0]
    if not len(moved):
        return []
    cells, _ = window.columns(moved, window.view.columns // MARK_PIXELS)
    moves_of = zip(*(cells[name][:, kind].tolist() for name in _MOVE_FIELDS), strict=True)
    said = [_say(mark, *each) for each in moves_of]
    x, height = window.x.at(cells, "move")[:, kind], log2_scale(cells["move_scale"][:, kind])
    colour = f"role:{mark.role}"
    symbol = {"symbol": mark.symbol, "size": 9, "color": colour}
    style = {**symbol, "line": {"width": 1, "color": colour}}
    moves = {"customdata": typed(cells["moves"][:, kind]), "cliponaxis": False}
    return [markers(mark.one, window.plot(x), height, said, style, **moves)]


def _say(mark: EventMark, moves: int, first: int, last: int, *scales: float) -> str:
    """Describe moves from step ``first`` to ``last``. The ``scales`` are in the order of `_MOVE_FIELDS`."""
    before, after, least, greatest = map(power_of_two, scales)
    if moves == 1:
        return f"{steps(first, last)}: {mark.one}<br>{before} → {after}"
    many = plural(moves, mark.one, mark.many)
    return f"{steps(first, last)}: {many}<br>to between {least} and {greatest}"


def _resumed(window: Window) -> list[Trace]:
    """Mark the process starts in a window, apart for scalers that kept their scale and for those that lost it."""
    resumes = window.source.resumes
    step = np.array([start.step for start in resumes], np.int64)
    x = window.x.of(step, np.array([start.time for start in resumes], np.int64))
    seen = np.flatnonzero((x >= window.low) & (x <= window.high))[-MARKED_MAX:]
    traces = []
    for name, forgot, symbol in _STARTS:
        places = [at for at in seen if (resumes[at].lost is not None) == forgot]
        starts = [resumes[at] for at in places]
        height = log2_scale(np.array([start.scale for start in starts], np.float64))
        marker = {**symbol, "color": "role:ink", "line": {"width": 1.5, "color": "role:ink"}}
        said = [_say_start(start) for start in starts]
        if starts:
            at = window.plot(x[places])
            traces.append(markers(name, at, height, said, marker, cliponaxis=False))
    return traces


def _say_start(start: Resume) -> str:
    where = steps(start.step, start.step)
    if start.lost is not None:
        moved = f"{power_of_two(start.lost)} → {power_of_two(start.scale)}"
        return f"{where}: the scaler's state was not restored<br>{moved}"
    how = "its state restored" if start.restored else "its state not restored"
    return f"{where}: resumed, {how}<br>{power_of_two(start.scale)}"


def _range(cell: Cells, room: Headroom | None) -> tuple[float, float]:
    """The range of the y axis: all scales, and only as much headroom as keeps them readable."""
    low, high = log2_scale(np.array([cell["scale_min"], cell["scale_max"]])).tolist()
    if math.isnan(low):
        low, high = 0.0, 1.0
    if room is not None:
        high = max(high, min(float(np.nanmax(room.limit)), high + ROOM_MAX))
    return around(np.array([low, high]))


def _labels(
    cell: Cells, room: Headroom | None, ends: tuple[float, float], view: View
) -> tuple[list[Trace], list[Trace]]:
    """Label the newest scale and, clear of that, the headroom. Draw the floor if a scale is dead."""
    shapes, labels = [], []
    newest, lowest = log2_scale(np.array([cell["after_last"], cell["scale_min"]])).tolist()
    if DEAD < newest < ENDLESS and not view.narrow:
        when = " now" if view.stop is None else ""
        labels.append(beside(newest, power(newest) + when, "scale", view))
    if lowest <= DEAD:
        shapes.append(level(DEAD, "skip", dash="dot"))
        labels.append(
            beside(DEAD, "dead: 1/scale overflows", "skip", view, x=0, xanchor="left", yshift=8)
        )
    if room is not None:
        gap = 0.08 * (ends[1] - ends[0])
        above = newest + gap if newest < ENDLESS else ends[0]
        labels += room.label((above, ends[1] - gap), view)
    return shapes, labels


def _caption(cell: Cells, window: Window) -> str:
    moved = dict(zip(MOVES, cell["moves"].tolist(), strict=True))
    words = [
        plural(moved[mark.event], mark.one, mark.many)
        for mark in MARKS
        if moved[mark.event] or mark.event in {"grow", "backoff"}
    ]
    unusable, (first, last) = int(cell["unusable"]), window.steps
    after, newest = power_of_two(float(cell["after_last"])), count(int(cell["last"]))
    said = f"{after} after step {newest}. {', '.join(words)} in {steps(first, last)}."
    if unusable:
        said += f" In {plural(unusable, 'step')} the scale was not a positive number."
    if lost := last - first + 1 - int(cell["n"]):
        said += f" There is no record of {plural(lost, 'step')} in between."
    if (most := int(window.updates["n"].max())) > len(_POINTS):
        said += f" A column holds up to {count(most)} steps; their first, last, lowest and highest scale are drawn."
    return said + pruned(window.pruned_before)


@dataclass(frozen=True, slots=True)
class Headroom:
    """log2 of the scale at columns of samples [c], and of the ``limit``, where the largest gradient would be 65504."""

    judged: JudgedGradients
    scale: Floats
    limit: Floats

    @property
    def bits(self) -> Floats:
        """The headroom in bits, [c]; NaN where it is unknown."""
        return self.limit - self.scale

    def traces(self) -> list[Trace]:
        """Draw the band above the scale, and the line of its upper end."""
        window, name = self.judged.window, "headroom"
        x = np.append(self.judged.x, max(window.high, self.judged.x[-1]))
        points = broken(x, window.gaps, held=True)
        limit, bits = (np.append(each, each[-1]) for each in (self.limit, self.bits))
        shown = np.where(points.empty, np.nan, bits[points.taken])
        fill: Trace = {"name": name, "fillcolor": "role:scale", "opacity": 0.1}
        dots = {"shape": "hv", "color": "role:scale", "width": 1, "dash": "dot"}
        said = [_say_room(each) for each in shown.tolist()]
        hover: Trace = {"text": said, "hovertemplate": "%{text}<extra></extra>"}
        return [
            band(*self.judged.pieces, self.scale, self.limit, window, **fill),
            points.line(limit, window, name=name, line=dots, showlegend=False, **hover),
        ]

    def label(self, within: tuple[float, float], view: View) -> list[Trace]:
        """Label the newest headroom at the right of its line, between the two heights of ``within``."""
        bits = float(self.bits[self.judged.newest_column])
        if not np.isfinite(bits):
            return []
        at = min(max(float(self.limit[self.judged.newest_column]), within[0]), within[1])
        return [beside(at, f"headroom {bits:.1f} bits", "scale", view)]

    @property
    def caption(self) -> str:
        """Describe the newest headroom in a sentence, with a leading space.

        If the newest column has several samples, it is the headroom that all of them leave.
        """
        newest = self.judged.newest_column
        bits = float(self.bits[newest])
        if not np.isfinite(bits):
            return ""
        doublings = int(max(bits, 0))
        most = "at most " if self.judged.sampled else ""
        room_for = plural(doublings, "doubling") if doublings else "no doubling"
        samples = "sample" if self.judged.of("samples")[newest] == 1 else "samples"
        return f" Headroom at the newest {samples}: {most}{bits:.1f} bits, room for {room_for} before 65\u202f504."


def headroom(window: Window) -> Headroom | None:
    """Return the headroom in a window. None if no sampled gradient is on fp16's grid, or none holds a number."""
    judged = judge(window)
    if judged is None or judged.side == "off":
        return None
    cells, starts = judged.apart
    # If a column has samples at several scales, use the lowest, so that the limit is not too high.
    least = np.fmin.reduceat(scales(cells, window)[0], starts)
    scale = np.where(np.isfinite(least), np.log2(least), np.nan)
    found = Headroom(judged, scale, scale + _bits(judged))
    return found if np.isfinite(found.limit).any() else None


def _bits(judged: JudgedGradients) -> Floats:
    """Return the bits above the largest element, [c]; 0 if the only sample of a column overflowed.

    If some of several samples overflowed, use the largest finite element, to whole bits.
    """
    amax, histogram = judged.of("amax"), judged.of("histogram")
    top = BINS - 1 - (histogram[:, ::-1] > 0).argmax(1) + EXPONENT_MIN
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.log2(FP16.max / amax)
    whole = np.where(histogram.any(1), np.maximum(FP16.exponent_max - top, 0), np.nan)
    whole[(judged.of("samples") == 1) & (judged.of("inf") > 0)] = 0.0
    return np.where(np.isfinite(exact) & (amax > 0), exact, whole)


def _say_room(bits: float) -> str:
    return f"headroom {bits:.1f} bits" if np.isfinite(bits) else "headroom not known"
