"""The window of a number format over exponents of the unscaled gradient. It slides down as the scale goes up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon.numerics.formats import FloatFormat
from ampmon_server.charts.parts.layout import beside
from ampmon_server.charts.parts.traces import Trace, band, line
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, digits_of


BEYOND = 28.0
"""Limits are drawn at most this many octaves beyond the data."""

_LINES = ({"width": 3, "color": "role:background"}, {"width": 1, "color": "role:ink"})
"""A thin line on a wider one of the background's colour, which stands out from every colour of the map."""

_SHADE: Mapping[str, Any] = {"fillcolor": "role:muted", "opacity": 0.3}
_HATCH: Mapping[str, Any] = {
    "fillcolor": "role:muted",
    "fillpattern": {
        "shape": "/",
        "size": 8,
        "solidity": 0.12,
        "fgcolor": "role:muted",
        "bgcolor": "rgba(0,0,0,0)",
    },
    "opacity": 0.6,
}


def begins(of: FloatFormat) -> dict[str, int]:
    """Return the first exponents that overflow in a format, that are normal, and that are within its range."""
    return {
        "overflow": of.exponent_max + 1,
        "normal": of.exponent_min_normal,
        "smallest": of.exponent_min_subnormal,
    }


def limits(of: FloatFormat) -> list[float]:
    """Return where a format overflows, where it begins to lose bits, and where its grid ends, from top to bottom.

    Rows and bars are centred on exponents, so a limit is half of one below the first exponent above it.
    """
    return [first - 0.5 for first in begins(of).values()]


@dataclass(frozen=True, slots=True)
class FormatWindow:
    """The window of a format along x: at ``levels`` [c], log2 of the scale, each from ``left`` to ``right`` [c]."""

    left: Floats
    right: Floats
    levels: Floats
    format: FloatFormat

    @classmethod
    def along(cls, x: Ints | Floats, levels: Floats, format: FloatFormat) -> FormatWindow:
        """Build the window from ``x`` [n], the centres of at least two columns of a heatmap, and their ``levels`` [n].

        Columns of the same level become one piece. Columns of level NaN have none.
        """
        middles = (x[1:] + x[:-1]) / 2
        left = np.append(2 * x[0] - middles[0], middles)
        right = np.append(middles, 2 * x[-1] - middles[-1])
        begins = np.append(True, levels[1:] != levels[:-1]) & np.isfinite(levels)
        ends = np.append(levels[1:] != levels[:-1], True) & np.isfinite(levels)
        return cls(left[begins], right[ends], levels[begins], format)

    def reach(self, low: float, high: float) -> tuple[float, float]:
        """Extend the heights ``low`` to ``high`` to the window's limits, by at most `BEYOND` octaves each way."""
        overflow, _, smallest = limits(self.format)
        top = float((overflow - self.levels).max())
        bottom = float((smallest - self.levels).min())
        return max(min(low, bottom - 1), low - BEYOND), min(max(high, top + 1), high + BEYOND)

    def traces(self, low: float, high: float, window: Window) -> list[Trace]:
        """Draw the limits, shade what the format cannot hold, and hatch where it loses bits.

        All of it is cut to the heights ``low`` to ``high``.
        """
        lines = [limit - self.levels for limit in limits(self.format)]
        overflow, subnormal, smallest = (np.clip(each, low, high) for each in lines)
        top, bottom = np.full_like(self.levels, high), np.full_like(self.levels, low)
        pieces = self.left, self.right
        return [
            band(*pieces, overflow, top, window, **_SHADE),
            band(*pieces, bottom, smallest, window, **_SHADE),
            band(*pieces, smallest, subnormal, window, **_HATCH),
            *(
                line(
                    *pieces, np.where((each > low) & (each < high), each, np.nan), window, line=how
                )
                for each in lines
                for how in _LINES
            ),
        ]

    def labels(self, low: float, high: float, window: Window) -> list[dict[str, Any]]:
        """Label each line within the plot at its right end, without overlaps."""
        of = self.format
        largest = count(int(of.max)) if of.max < 1e6 else digits_of(of.max, 2)
        said = (
            ("overflow", largest),
            ("subnormal", f"2<sup>{of.exponent_min_normal}</sup>"),
            ("smallest", f"2<sup>{of.exponent_min_subnormal}</sup>"),
        )
        between = " " if window.view.narrow else "<br>"
        least, placed, last = 0.085 * (high - low), [], np.inf
        for limit, (word, number) in zip(limits(of), said, strict=True):
            at = limit - float(self.levels[-1])
            if low < at < high:
                last = min(at, last - least)
                words = f"{word}{between}{number} ÷ scale"
                placed.append(beside(last, words, "ink", window.view))
        return placed
