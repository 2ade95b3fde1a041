"""A source cut to a view: its x axis, its pixel columns, its gaps, and its arrays as the browser takes them.

A gap is a stretch of x in which steps have no record. Every chart leaves gaps empty and shades them.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon_server.charts.parts.source import Axis, Source, View
from ampmon_server.model.aggregates.merging import Cells, Layout, aligned_span, starts_of
from ampmon_server.model.aggregates.updates import LAYOUT, missing
from ampmon_server.model.series import Floats, Ints, StepClock, UserSteps


ROWS_PER_COLUMN = 4
"""With fewer updates per column than this, a source holds single updates, if the store still has them."""

Place: TypeAlias = Literal["first", "last", "scale_min", "scale_max", "skip", "move"]

PLACES: Mapping[Place, tuple[str, str]] = {
    "first": ("first", "time_first"),
    "last": ("last", "time_last"),
    "scale_min": ("scale_min_step", "scale_min_time"),
    "scale_max": ("scale_max_step", "scale_max_time"),
    "skip": ("skip_last", "skip_time"),
    "move": ("move_last", "move_time"),
}
"""The fields that hold the step and the time of each place in a cell."""


@dataclass(frozen=True, slots=True)
class XAxis:
    """What x is: the step, the time, or the user's own step.

    Where the user's step is unknown, it is interpolated and may be a fraction. With a ``clock``, steps are not those
    given, which another scaler counts, but the shown scaler's at the same times. The time is that since ``origin``.
    """

    kind: Axis
    user: UserSteps | None = None
    clock: StepClock | None = None
    origin: int = 0

    def at(self, cells: Cells, place: Place) -> Ints | Floats:
        """Return the x of a place in each of n cells, [n]. A move has one for each kind of move, [n, kinds]."""
        step, time = PLACES[place]
        return self.of(cells[step], cells[time])

    def of(self, steps: Ints, times: Ints) -> Ints | Floats:
        if self.kind == "time":
            return times - self.origin
        steps = self.steps(steps, times)
        return self.user.forth(steps) if self.kind == "user" and self.user is not None else steps

    def steps(self, steps: Ints, times: Ints) -> Ints:
        """Return the shown scaler's steps."""
        return steps if self.clock is None else self.clock.at(times)


def axis_of(source: Source, name: str, view: View, origin: int = 0) -> XAxis:
    """Return the x axis of the values logged under ``name``, with times since ``origin``."""
    return XAxis(view.x, source.user, source.clock if name in source.others else None, origin)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Disjoint stretches in order of x. ``starts`` and ``stops`` [g] are the x of the updates on both sides.

    The exact place of a hole within a pixel column is unknown, so its stretch is the whole column.
    """

    starts: Floats
    stops: Floats

    @classmethod
    def merged(cls, starts: Floats, stops: Floats) -> Gaps:
        """Merge gaps that touch, and drop gaps that a clock set back has reversed."""
        order = np.argsort(starts, kind="stable")
        order = order[(stops > starts)[order]]
        starts, stops = starts[order], np.maximum.accumulate(stops[order])
        begins = np.append(True, starts[1:] > stops[:-1])[: len(starts)]
        ends = np.append(begins[1:], True)[: len(starts)]
        return cls(starts[begins], stops[ends])

    def between(self, x: Ints | Floats) -> tuple[Ints, Floats, Floats]:
        """Find the points that are followed by a gap before the next point. ``x`` [p] is in order.

        Return the places of these points, and the start and the end of each gap, cut to the points on both sides.
        """
        behind = np.searchsorted(self.stops, x[:-1], side="right")
        places = np.flatnonzero(behind < len(self.stops))
        places = places[self.starts[behind[places]] < x[places + 1]]
        found = behind[places]
        return (
            places,
            np.maximum(self.starts[found], x[places]),
            np.minimum(self.stops[found], x[places + 1]),
        )


@dataclass(frozen=True)
class Window:
    """A ``source`` cut to a ``view``. ``low`` and ``high`` are the first and the last x drawn.

    The user's own steps may be fractions. Then ``high`` is exactly the last one, and ``low`` is a whole number at or
    before the first. ``updates`` has a cell for each pixel column that holds any update, in order of x.
    """

    source: Source
    view: View
    low: int
    high: float
    updates: Cells
    gradients: Cells
    x: XAxis
    pruned_before: int = 0
    """Before this step the window has cells because the single updates were pruned; 0 if it misses none."""

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step of the window's updates. The window must have one."""
        return int(self.updates["first"].min()), int(self.updates["last"].max())

    @property
    def in_steps(self) -> Cells:
        """The updates in order of step. A clock that was set back gives them another order of x."""
        return self.updates[np.argsort(self.updates["first"], kind="stable")]

    @property
    def all_updates(self) -> Cells:
        """The updates merged into one cell. The window must have one."""
        return LAYOUT.merge(self.in_steps, np.zeros(1, np.int64))

    @cached_property
    def gaps(self) -> Gaps:
        """The gaps between the updates."""
        # A clock that was set back changes the order of x, but leaves no gap.
        cells = self.in_steps
        if is_whole(cells):
            return Gaps(np.zeros(0), np.zeros(0))
        first, last = (self.x.at(cells, place).astype(np.float64) for place in ("first", "last"))
        apart = np.flatnonzero(cells["first"][1:] - cells["last"][:-1] > 1)
        entangled = (cells["first"][1:] <= cells["last"][:-1]).any()
        holed = (missing(cells) > 0) & ~entangled
        starts = np.append(last[apart], first[holed])
        stops = np.append(first[apart + 1], last[holed])
        return Gaps.merged(starts, stops)

    def columns(self, cells: Cells, most: int, layout: Layout = LAYOUT) -> tuple[Cells, float]:
        """Merge some of the window's cells into at most ``most`` columns (2 or more). Return them and their span.

        Columns are aligned to multiples of the span, so they stay in place as updates are added. ``layout`` says how
        cells merge; the default is for updates.
        """
        span = aligned_span(self.low, self.high, most)
        keys = np.floor_divide(self.x.at(cells, "first"), span).astype(np.int64)
        if (np.diff(cells["first"]) < 0).any():  # the clock was set back
            order = np.lexsort((cells["first"], keys))
            cells, keys = cells[order], keys[order]
        return layout.merge(cells, starts_of(keys)), span

    def held(self, x: Ints | Floats) -> tuple[Floats, Floats]:
        """Return the x where each column that begins at ``x`` [c] starts and ends.

        A column ends at the next one, at a gap, or at the window's end.
        """
        ends = np.append(x, max(self.high, x[-1])).astype(np.float64)
        places, starts, _ = self.gaps.between(ends)
        right = ends[1:].copy()
        right[places] = starts
        return ends[:-1], right

    def plot(self, x: npt.NDArray[Any]) -> dict[str, str]:
        """Encode x for Plotly: steps, or ms since the epoch."""
        return typed(self.view.in_plot(x))


def cut(source: Source, view: View, origin: int = 0) -> Window:
    """Cut ``source`` to ``view``, with times since ``origin``, and merge its updates into pixel columns."""
    x = XAxis(view.x, source.user, origin=origin)
    updates, gradients = (in_view(cells, x, view) for cells in (source.updates, source.gradients))
    low, high = ends((updates, gradients), x, view)
    # With so few updates, the chart would draw each of them if the store still had them.
    missed = int(updates["n"].sum()) < ROWS_PER_COLUMN * view.columns
    missed = missed and bool((updates["first"] < source.rows_from).any())
    before = source.rows_from if missed else 0
    window = Window(source, view, low, high, updates, gradients, x, before)
    return replace(window, updates=window.columns(updates, view.columns)[0])


def ends(series: Sequence[Cells], x: XAxis, view: View) -> tuple[int, float]:
    """Return the first and the last x of a view. Where the view is open, return that of ``series``."""
    filled = [cells for cells in series if len(cells)]
    lows = [math.floor(x.of(cells["first"], cells["time_min"]).min()) for cells in filled]
    highs = [x.of(cells["last"], cells["time_max"]).max().item() for cells in filled]
    low = view.start if view.start is not None else min(lows, default=0)
    high: float = max(highs, default=low)
    if view.stop is not None:
        high = math.nextafter(view.stop, -math.inf) if view.x == "user" else view.stop - 1
    return low, max(low, high)


def in_view(cells: Cells, x: XAxis, view: View) -> Cells:
    """Return the cells that a view shows, in order of x."""
    at = x.at(cells, "first")
    if (np.diff(at) < 0).any():  # the clock was set back
        order = np.argsort(at, kind="stable")
        cells, at = cells[order], at[order]
    first = 0 if view.start is None else int(np.searchsorted(at, view.start))
    last = len(at) if view.stop is None else int(np.searchsorted(at, view.stop))
    return cells[first:last]


def is_whole(cells: Cells) -> bool:
    """Whether the cells have every step from their first to their last."""
    if not len(cells):
        return True
    steps = int(cells["last"].max()) - int(cells["first"].min()) + 1
    return int(cells["n"].sum()) == steps


def rows(cells: Cells, *names: str) -> Iterable[tuple[Any, ...]]:
    """Iterate over fields of the cells as tuples: ten times as fast as over the cells themselves."""
    return zip(*(cells[name].tolist() for name in names), strict=True)


def typed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Encode ``values`` [n] or [rows, n] as a typed array of the smallest type that holds them exactly.

    Whole numbers that do not fit in 32 bits become float64, because the browser has no 64-bit integers.
    """
    dtype = _dtype(values)
    data = b64encode(np.ascontiguousarray(values, "<" + dtype).tobytes()).decode()
    shape = {"shape": ",".join(map(str, values.shape))} if values.ndim > 1 else {}
    return {"dtype": dtype, "bdata": data, **shape}


def _dtype(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind == "f":
        return "f4" if values.dtype.itemsize <= 4 else "f8"
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for dtype in ("i1", "i2", "i4"):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return "f8"
