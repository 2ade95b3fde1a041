"""Stepped lines and bands made of pieces with one height each. They break where two pieces do not meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ampmon_server.charts.parts.gaps import Gaps
from ampmon_server.charts.parts.layout import Trace, plot_x
from ampmon_server.charts.parts.source import View, Window
from ampmon_server.charts.parts.typed import typed
from ampmon_server.model.series import Floats, Ints


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
