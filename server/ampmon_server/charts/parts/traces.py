"""The traces of charts: typed arrays, lines that break at gaps, and stepped lines and bands.

A gap is a stretch of x in which steps have no record. Every chart leaves gaps empty and shades them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon_server.charts.parts.source import View, Window
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import missing
from ampmon_server.model.series import Flags, Floats, Ints


Trace: TypeAlias = dict[str, Any]

SHADES_MAX = 100
"""At most this many gaps are shaded, the widest ones."""

SHADE_PIXELS = 2
"""The least width of a shade, so that every gap is visible."""

LABELLED = 0.12
"""A gap has room for a label if it is at least this share of the plot's width."""


def typed(values: npt.NDArray[Any]) -> dict[str, str]:
    """Encode ``values`` [n] or [rows, n] as a typed array of the smallest type that holds them exactly.

    Whole numbers that do not fit in 32 bits become float64, because the browser has no 64-bit integers.
    """
    dtype = _dtype(values)
    spec = {
        "dtype": dtype,
        "bdata": b64encode(np.ascontiguousarray(values, "<" + dtype).tobytes()).decode(),
    }
    if values.ndim > 1:
        spec["shape"] = ",".join(map(str, values.shape))
    return spec


def _dtype(values: npt.NDArray[Any]) -> str:
    if values.dtype.kind == "f":
        return "f4" if values.dtype.itemsize <= 4 else "f8"
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    for dtype in ("i1", "i2", "i4"):
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return "f8"


def plot_x(x: npt.NDArray[Any], view: View) -> dict[str, str]:
    """Encode x for Plotly: steps, or ms since the epoch in the view's zone."""
    return typed(view.in_plot(x))


@dataclass(frozen=True, slots=True)
class Gaps:
    """Disjoint stretches in order of x. ``starts`` and ``stops`` [g] are the x of the updates on both sides.

    The exact place of a hole within a pixel column is unknown, so its stretch is the whole column.
    """

    starts: Floats
    stops: Floats

    @classmethod
    def of(cls, window: Window) -> Gaps:
        """Find the gaps between a window's updates."""
        # A clock that was set back changes the order of x, but leaves no gap.
        cells = window.in_steps
        if is_whole(cells):
            return cls(np.zeros(0), np.zeros(0))
        first, last = (window.x.at(cells, place).astype(np.float64) for place in ("first", "last"))
        apart = np.flatnonzero(cells["first"][1:] - cells["last"][:-1] > 1)
        entangled = (cells["first"][1:] <= cells["last"][:-1]).any()
        holed = (missing(cells) > 0) & ~entangled
        starts = np.append(last[apart], first[holed])
        stops = np.append(first[apart + 1], last[holed])
        return _merged(starts, stops)

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


def is_whole(cells: Cells) -> bool:
    """Whether the cells have every step from their first to their last."""
    if not len(cells):
        return True
    steps = int(cells["last"].max()) - int(cells["first"].min()) + 1
    return int(cells["n"].sum()) == steps


def _merged(starts: Floats, stops: Floats) -> Gaps:
    """Merge gaps that touch, and drop gaps that a clock set back has reversed."""
    order = np.argsort(starts, kind="stable")
    order = order[(stops > starts)[order]]
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    begins = np.append(True, starts[1:] > stops[:-1])[: len(starts)]
    ends = np.append(begins[1:], True)[: len(starts)]
    return Gaps(starts[begins], stops[ends])


@dataclass(frozen=True, slots=True)
class GappedPoints:
    """Points with others inserted at gaps: ``taken`` [q] is the original point of each, ``x`` its new position.

    A line breaks at the points that are ``empty``.
    """

    taken: Ints
    x: Ints | Floats
    empty: Flags

    def line(self, y: Floats, view: View, said: Sequence[str] | None = None, **keys: Any) -> Trace:
        """Draw a line through ``y`` of the original points [p], with ``said`` [p] as the hover texts."""
        if said is not None:
            keys = {"text": [said[place] for place in self.taken.tolist()], **keys}
        return {
            "type": "scatter",
            "mode": "lines",
            "x": plot_x(self.x, view),
            "y": typed(np.where(self.empty, np.nan, y[self.taken])),
            **keys,
        }


def _whole(x: Ints | Floats) -> GappedPoints:
    return GappedPoints(np.arange(len(x)), x, np.zeros(len(x), bool))


def broken(x: Ints | Floats, gaps: Gaps, *, held: bool) -> GappedPoints:
    """Insert a break into points in order of x [p] where a gap begins. A ``held`` value lasts until there.

    The last point of held values is the end to which the newest is held. It is empty if it follows a gap.
    """
    places, starts, _ = gaps.between(x)
    if not len(places):
        return _whole(x)
    put = 1 + held
    at = np.repeat(places + 1, put)
    empty = np.zeros(len(x), bool)
    empty[-1] = held and places[-1] == len(x) - 2
    return GappedPoints(
        np.insert(np.arange(len(x)), at, np.repeat(places, put)),
        np.insert(x.astype(np.float64), at, np.repeat(starts, put)),
        np.insert(empty, at, np.tile([False] * held + [True], len(places))),
    )


def apart(x: Ints | Floats, gaps: Gaps) -> GappedPoints:
    """Insert two empty columns into each gap between a heatmap's column centres, which are in order [p].

    Plotly draws a column until half way to the next centre, so these two place the ends of the gap.
    """
    places, starts, stops = gaps.between(x)
    if not len(places):
        return _whole(x)
    middle, wide = (starts + stops) / 2, stops - starts
    left = np.clip(2 * starts - x[places], x[places] + wide / 100, middle - wide / 8)
    right = np.clip(2 * stops - x[places + 1], middle + wide / 8, x[places + 1] - wide / 100)
    at = np.repeat(places + 1, 2)
    return GappedPoints(
        np.insert(np.arange(len(x)), at, np.repeat(places, 2)),
        np.insert(x.astype(np.float64), at, np.stack([left, right], axis=1).ravel()),
        np.insert(np.zeros(len(x), bool), at, True),
    )


def edges(x: Ints | Floats, window: Window) -> Ints | Floats:
    """Return the x of a heatmap's columns. A single column becomes its two edges, wide enough to be seen."""
    if len(x) > 1:
        return x
    half = max(0.5, (window.high - window.low) / 200)
    return np.array([x[0] - half, x[0] + half])


def shades(window: Window, view: View) -> list[dict[str, Any]]:
    """Return Plotly shapes that shade the gaps of a window below the data."""
    if not len(window.updates):
        return []
    gaps = Gaps.of(window)
    width = window.high - window.low or 1
    least = SHADE_PIXELS * width / view.columns
    pad = np.maximum(least - (gaps.stops - gaps.starts), 0) / 2
    gaps = _merged(gaps.starts - pad, gaps.stops + pad)
    widest = np.sort(np.argsort(gaps.starts - gaps.stops, kind="stable")[:SHADES_MAX])
    return [
        {
            "type": "rect",
            "layer": "below",
            "xref": "x",
            "x0": view.in_plot(start),
            "x1": view.in_plot(stop),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "fillcolor": "role:hairline",
            "opacity": 0.5,
            "line": {"width": 0},
            **(_LABEL if stop - start >= LABELLED * width and not view.narrow else {}),
        }
        for start, stop in zip(
            gaps.starts[widest].tolist(), gaps.stops[widest].tolist(), strict=True
        )
    ]


_LABEL = {
    "label": {
        "text": "no record",
        "textposition": "middle center",
        "font": {"size": 11, "color": "role:muted"},
    }
}


def markers(
    name: str,
    x: Mapping[str, str],
    y: Any,
    said: Sequence[str],
    marker: Mapping[str, Any],
    **keys: Any,
) -> Trace:
    """Draw marks at the encoded ``x`` [p] and heights ``y`` [p], with ``said`` [p] as the hover texts."""
    return {
        "type": "scatter",
        "name": name,
        "mode": "markers",
        "marker": marker,
        "x": x,
        "y": typed(y) if isinstance(y, np.ndarray) else y,
        "text": said,
        "hoverinfo": "text",
        **keys,
    }


def each_once(
    x: npt.NDArray[Any], step: Ints, *values: npt.NDArray[Any]
) -> tuple[Flags, list[npt.NDArray[Any]]]:
    """Put the points of each column in order of x, and tell which are needed to draw each step once.

    All arguments are [c, points]. Returns the needed ones [c, points], and ``x``, ``step`` and ``values`` in order.
    """
    order = np.lexsort((step, x), axis=1)
    ordered = [np.take_along_axis(each, order, axis=1) for each in (x, step, *values)]
    return np.diff(ordered[1], axis=1, prepend=-1) != 0, ordered


def held(x: Ints | Floats, window: Window) -> tuple[Floats, Floats]:
    """Return the x where each column that begins at ``x`` [c] starts and ends.

    A column ends at the next one, at a gap, or at the window's end.
    """
    ends = np.append(x, max(window.high, x[-1])).astype(np.float64)
    places, starts, _ = Gaps.of(window).between(ends)
    right = ends[1:].copy()
    right[places] = starts
    return ends[:-1], right


def line(
    left: Floats,
    right: Floats,
    height: Floats,
    view: View,
    said: Sequence[str] = (),
    **keys: Any,
) -> Trace:
    """Draw a line along pieces from ``left`` to ``right`` [c] at ``height`` [c]. A piece of height NaN is left out.

    ``said`` is the hover text of each piece.
    """
    parts = list(_together(left, right, height))
    found = [
        (np.stack([left[part], right[part]], axis=1).ravel(), np.repeat(height[part], 2))
        for part in parts
    ]
    if said:
        hovers = [[said[place] for place in part.tolist() for _ in "lr"] + [""] for part in parts]
        text = [words for part in hovers for words in part][:-1]
        keys = {"text": text, "hovertemplate": "%{text}", "hoverinfo": "text", **keys}
    return _trace(found, view, **keys)


def band(left: Floats, right: Floats, low: Floats, high: Floats, view: View, **keys: Any) -> Trace:
    """Draw a filled trace between ``low`` and ``high`` [c] of pieces. A piece with a NaN end is left out."""
    found = []
    # Go right along the upper ends and back along the lower ones.
    for part in _together(left, right, low + high):
        along = np.stack([left[part], right[part]], axis=1).ravel()
        out, back = np.repeat(high[part], 2), np.repeat(low[part], 2)
        found.append((np.append(along, along[::-1]), np.append(out, back[::-1])))
    return _trace(found, view, **{"line": {"width": 0}, "fill": "toself", **keys})


def _together(left: Floats, right: Floats, height: Floats) -> Iterator[Ints]:
    """Yield the places of each stretch of pieces that meet, without pieces of height NaN."""
    known = np.isfinite(height)
    cuts = np.flatnonzero((left[1:] != right[:-1]) | (known[1:] != known[:-1])) + 1
    for part in np.split(np.arange(len(left)), cuts):
        if len(part) and known[part[0]]:
            yield part


def _trace(found: list[tuple[Floats, Floats]], view: View, **keys: Any) -> Trace:
    """Join stretches into one trace that breaks between them."""
    x = [np.append(each, each[-1]) for each, _ in found]
    y = [np.append(each, np.nan) for _, each in found]
    return {
        "type": "scatter",
        "mode": "lines",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": plot_x(np.concatenate(x)[:-1] if x else np.zeros(0), view),
        "y": typed(np.concatenate(y)[:-1] if y else np.zeros(0)),
        **keys,
    }
