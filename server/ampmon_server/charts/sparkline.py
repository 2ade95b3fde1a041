"""The history of a scale as a small stepped path in a box of 96 by 24, for the list of runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ampmon_server.charts.parts.layout import log2_scale
from ampmon_server.charts.parts.source import Source, View
from ampmon_server.charts.parts.window import Window, cut
from ampmon_server.charts.scale import points
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.series import Floats
from ampmon_server.model.words import power_of_two


WIDTH, HEIGHT = 96, 24
PAD = 2
"""The free space above and below the line."""
BINADES = 4.0
"""The least range of the y axis, so that small moves of the scale look small."""
RUG_MAX = 12
"""A rug of more skips would look like a bar, so it is left out: the line of the scale shows them."""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A scale's history as SVG paths and in words.

    ``path`` draws log2(scale) upwards, with the least and the greatest of each column. ``skips`` draws the marks.
    ``words`` say the same: "from 2¹⁶ to 2³".
    """

    path: str
    skips: str
    words: str


def sparkline(cells: Cells) -> Sparkline | None:
    """Draw ``cells`` of updates. None if they have no scale that can be drawn."""
    window = cut(Source(cells), View(width=WIDTH))
    if not len(cells):
        return None
    x, _, scale, holes = points(window)
    heights = log2_scale(scale)
    drawn = np.isfinite(heights)
    if not drawn.any():
        return None
    at = _across(window, np.asarray(x[drawn], np.float64))
    up = _upwards(heights[drawn])
    return Sparkline(_path(at, up, holes[drawn]), _rug(window), _words(scale[drawn]))


def _across(window: Window, x: Floats) -> Floats:
    return np.round((x - window.low) / max(window.high - window.low, 1) * WIDTH, 1)


def _upwards(heights: Floats) -> Floats:
    low, high = float(heights.min()), float(heights.max())
    room = max(high - low, BINADES)
    bottom = (low + high - room) / 2
    return np.round(HEIGHT - PAD - (heights - bottom) / room * (HEIGHT - 2 * PAD), 1)


def _path(x: Floats, y: Floats, holes: np.ndarray) -> str:
    """Go across to each move, then up or down. Lift the pen where steps are missing."""
    parts = [f"M{x[0]:g} {y[0]:g}"]
    for before, now in enumerate(range(1, len(x))):
        if holes[now]:
            parts.append(f"H{x[before]:g}M{x[now]:g} {y[now]:g}")
        elif y[now] != y[before]:
            parts.append(f"H{x[now]:g}V{y[now]:g}")
    return "".join(parts) + (f"H{x[-1]:g}" if len(x) > 1 else f"H{WIDTH}")


def _rug(window: Window) -> str:
    held = window.updates[window.updates["skipped"] > 0]
    if len(held) > RUG_MAX:
        return ""
    places = _across(window, np.asarray(held["skip_last"], np.float64))
    return "".join(f"M{place:g} {HEIGHT}V{HEIGHT - 4}" for place in places.tolist())


def _words(scale: Floats) -> str:
    first, last, least = (_power(float(each)) for each in (scale[0], scale[-1], scale.min()))
    fell = f", {least} at its lowest" if least not in {first, last} else ""
    return f"{first} all along" if first == last and not fell else f"from {first} to {last}{fell}"


def _power(scale: float) -> str:
    """The scale as a power of two only: "2¹⁶"."""
    return power_of_two(scale).rpartition("= ")[2]
