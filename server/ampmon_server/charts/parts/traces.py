"""The traces of charts: lines that break at gaps, stepped lines and bands, marks, and the shades of gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ampmon_server.charts.parts.window import Gaps, Window, rows, typed
from ampmon_server.model.series import Flags, Floats, Ints
from ampmon_server.model.words import count, steps


Trace: TypeAlias = dict[str, Any]

SHADES_MAX = 100
"""At most this many gaps are shaded, the widest ones."""

SHADE_PIXELS = 2
"""The least width of a shade, so that every gap is visible."""

LABELLED = 0.12
"""A gap has room for a label if it is at least this share of the plot's width."""

_LABEL = {
    "label": {
        "text": "no record",
        "textposition": "middle center",
        "font": {"size": 11, "color": "role:muted"},
    }
}

DOTTED_MAX = 60
"""A line of at most this many points has a dot at each."""


def scatter(x: Mapping[str, str], y: Any, mode: str = "lines", **keys: Any) -> Trace:
    """Draw points at the encoded ``x`` [p] and heights ``y`` [p], joined unless ``mode`` is "markers"."""
    return {
        "type": "scatter",
        "mode": mode,
        "x": x,
        "y": typed(y) if isinstance(y, np.ndarray) else y,
        **keys,
    }


@dataclass(frozen=True, slots=True)
class GappedPoints:
    """Points with others inserted at gaps: ``taken`` [q] is the original point of each, ``x`` its new position.

    A line breaks at the points that are ``empty``.
    """

    taken: Ints
    x: Ints | Floats
    empty: Flags

    def line(
        self, y: Floats, window: Window, said: Sequence[str] | None = None, **keys: Any
    ) -> Trace:
        """Draw a line through ``y`` of the original points [p], with ``said`` [p] as the hover texts."""
        if said is not None:
            keys = {"text": [said[place] for place in self.taken.tolist()], **keys}
        return scatter(window.plot(self.x), np.where(self.empty, np.nan, y[self.taken]), **keys)


def _whole(x: Ints | Floats) -> GappedPoints:
    return GappedPoints(np.arange(len(x)), x, np.zeros(len(x), bool))


def broken(x: Ints | Floats, gaps: Gaps, *, held: bool = False) -> GappedPoints:
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


def heatmap(
    columns: GappedPoints, y: Any, z: Floats, hover: str, window: Window, **keys: Any
) -> Trace:
    """Draw a heatmap of ``z`` [rows, q] over these columns, and over rows at ``y``."""
    return {
        "type": "heatmap",
        "x": window.plot(edges(columns.x, window)),
        "y": y,
        # Seven digits are enough for a colour, in half the bytes.
        "z": typed(z.astype(np.float32)),
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "hovertemplate": f"{hover}<extra></extra>",
        **keys,
    }


def bars(
    x: Mapping[str, str], y: Any, said: Sequence[str], marker: Mapping[str, Any], **keys: Any
) -> Trace:
    """Draw bars at the encoded ``x`` [p] of the length ``y`` [p], with ``said`` [p] as the hover texts."""
    text = {"text": said, "textposition": "none", "hoverinfo": "text"}
    return {"type": "bar", "x": x, "y": typed(y), "marker": marker, **text, **keys}


def dotted(points: int) -> dict[str, Any]:
    """Return the keys of a line with a dot at each of its points, if they are few."""
    mode = "lines+markers" if points <= DOTTED_MAX else "lines"
    return {"mode": mode, "marker": {"size": 4}}


def shades(window: Window) -> list[dict[str, Any]]:
    """Return Plotly shapes that shade the gaps of a window below the data."""
    if not len(window.updates):
        return []
    view, gaps = window.view, window.gaps
    width = window.high - window.low or 1
    least = SHADE_PIXELS * width / view.columns
    pad = np.maximum(least - (gaps.stops - gaps.starts), 0) / 2
    gaps = Gaps.merged(gaps.starts - pad, gaps.stops + pad)
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


def markers(
    name: str,
    x: Mapping[str, str],
    y: Any,
    said: Sequence[str],
    marker: Mapping[str, Any],
    **keys: Any,
) -> Trace:
    """Draw marks at the encoded ``x`` [p] and heights ``y`` [p], with ``said`` [p] as the hover texts."""
    keys = {"name": name, "marker": marker, "text": said, "hoverinfo": "text", **keys}
    return scatter(x, y, "markers", **keys)


def tick(role: str, size: int) -> dict[str, Any]:
    """Return the marker of a skipped step."""
    colour = f"role:{role}"
    return {"symbol": "line-ns-open", "size": size, "color": colour, "line": {"width": 1.5}}


def rug(window: Window, height: float, role: str, size: int, said: str, **keys: Any) -> Trace:
    """Mark the newest skip of each pixel column that holds one, with {where} and {skips} of its column ``said``."""
    held = window.updates[window.updates["skipped"] > 0]
    text = [
        said.format(where=steps(first, last), skips=f"{count(number)} skipped")
        for first, last, number in rows(held, "skip_first", "skip_last", "skipped")
    ]
    keys |= {"marker": tick(role, size), "customdata": typed(held["skipped"]), "text": text}
    x = window.plot(window.x.at(held, "skip"))
    return scatter(x, [height] * len(held), "markers", **keys)


CROSS: Mapping[str, Any] = {"symbol": "x", "size": 7, "color": "role:skip"}
"""The marker of a value that is not finite."""


def each_once(
    x: npt.NDArray[Any], step: Ints, *values: npt.NDArray[Any]
) -> tuple[Flags, list[npt.NDArray[Any]]]:
    """Put the points of each column in order of x, and tell which are needed to draw each step once.

    All arguments are [c, points]. Returns the needed ones [c, points], and ``x``, ``step`` and ``values`` in order.
    """
    order = np.lexsort((step, x), axis=1)
    ordered = [np.take_along_axis(each, order, axis=1) for each in (x, step, *values)]
    return np.diff(ordered[1], axis=1, prepend=-1) != 0, ordered


def line(
    left: Floats,
    right: Floats,
    height: Floats,
    window: Window,
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
    return _trace(found, window, **keys)


def band(
    left: Floats, right: Floats, low: Floats, high: Floats, window: Window, **keys: Any
) -> Trace:
    """Draw a filled trace between ``low`` and ``high`` [c] of pieces. A piece with a NaN end is left out."""
    found = []
    # Go right along the upper ends and back along the lower ones.
    for part in _together(left, right, low + high):
        along = np.stack([left[part], right[part]], axis=1).ravel()
        out, back = np.repeat(high[part], 2), np.repeat(low[part], 2)
        found.append((np.append(along, along[::-1]), np.append(out, back[::-1])))
    return _trace(found, window, **{"line": {"width": 0}, "fill": "toself", **keys})


def _together(left: Floats, right: Floats, height: Floats) -> Iterator[Ints]:
    """Yield the places of each stretch of pieces that meet, without pieces of height NaN."""
    known = np.isfinite(height)
    cuts = np.flatnonzero((left[1:] != right[:-1]) | (known[1:] != known[:-1])) + 1
    for part in np.split(np.arange(len(left)), cuts):
        if len(part) and known[part[0]]:
            yield part


def _trace(found: list[tuple[Floats, Floats]], window: Window, **keys: Any) -> Trace:
    """Join stretches into one trace that breaks between them."""
    x = [np.append(each, each[-1]) for each, _ in found]
    y = [np.append(each, np.nan) for _, each in found]
    along, heights = (np.concatenate(ends)[:-1] if ends else np.zeros(0) for ends in (x, y))
    keys = {"showlegend": False, "hoverinfo": "skip", **keys}
    return scatter(window.plot(along), heights, **keys)
