"""The window of a number format over exponents of the unscaled gradient. It slides down as the scale goes up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon.numerics.formats import FloatFormat
from ampmon_server.charts.parts.layout import beside
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, band, line
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count


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


@dataclass(frozen=True, slots=True)
class Limit:
    """A line of a format's window: its ``height`` over exponents of the scaled gradient, and its words."""

    height: float
    word: str
    at: str


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

    @property
    def begins(self) -> dict[str, int]:
        """The first exponents of the scaled gradient that overflow, that are normal, and that are within range."""
        of = self.format
        return {
            "overflow": of.exponent_max + 1,
            "normal": of.exponent_min_normal,
            "smallest": of.exponent_min_subnormal,
        }

    @property
    def limits(self) -> tuple[Limit, Limit, Limit]:
        """From top to bottom: where the format overflows, where it begins to lose bits, and where its grid ends."""
        # Rows are centred on exponents, so a limit is half a row below the first exponent above it.
        overflow, normal, smallest = self.begins.values()
        return (
            Limit(overflow - 0.5, "overflow", _number(self.format.max)),
            Limit(normal - 0.5, "subnormal", f"2<sup>{normal}</sup>"),
            Limit(smallest - 0.5, "smallest", f"2<sup>{smallest}</sup>"),
        )

    def reach(self, low: float, high: float) -> tuple[float, float]:
        """Extend the heights ``low`` to ``high`` to the window's limits, by at most `BEYOND` octaves each way."""
        overflow, _, smallest = self.limits
        top = float((overflow.height - self.levels).max())
        bottom = float((smallest.height - self.levels).min())
        return max(min(low, bottom - 1), low - BEYOND), min(max(high, top + 1), high + BEYOND)

    def traces(self, low: float, high: float, view: View) -> list[Trace]:
        """Draw the limits, shade what the format cannot hold, and hatch where it loses bits.

        All of it is cut to the heights ``low`` to ``high``.
        """
        lines = [limit.height - self.levels for limit in self.limits]
        overflow, subnormal, smallest = (np.clip(each, low, high) for each in lines)
        top, bottom = np.full_like(self.levels, high), np.full_like(self.levels, low)
        pieces = self.left, self.right
        return [
            band(*pieces, overflow, top, view, **_SHADE),
            band(*pieces, bottom, smallest, view, **_SHADE),
            band(*pieces, smallest, subnormal, view, **_HATCH),
            *(
                line(*pieces, np.where((each > low) & (each < high), each, np.nan), view, line=how)
                for each in lines
                for how in _LINES
            ),
        ]

    def labels(self, low: float, high: float, view: View) -> list[dict[str, Any]]:
        """Label each line within the plot at its right end, without overlaps."""
        least, placed, last = 0.085 * (high - low), [], np.inf
        for limit in self.limits:
            at = limit.height - float(self.levels[-1])
            if low < at < high:
                last = min(at, last - least)
                words = f"{limit.word}{' ' if view.narrow else '<br>'}{limit.at} ÷ scale"
                placed.append(beside(last, words, "ink", view))
        return placed


def _number(largest: float) -> str:
    return count(int(largest)) if largest < 1e6 else f"{largest:.1e}".replace("e+", "e")
