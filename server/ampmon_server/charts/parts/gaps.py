"""Stretches of x in which steps have no record: every chart leaves them empty, and shades them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon_server.charts.parts.source import View, Window
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import missing
from ampmon_server.model.series import Flags, Floats, Ints


SHADES_MAX = 100
"""Of more gaps the widest are shaded."""

SHADE_PIXELS = 2
"""However narrow a gap is, it is to be seen."""

LABELLED = 0.12
"""A gap that is this share of the plot or more has room for words."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Disjoint stretches in order of x: ``starts`` and ``stops`` [g] are the x of the updates on both sides.

    Of a hole within a pixel column only that column is known.
    """

    starts: Floats
    stops: Floats

    @classmethod
    def of(cls, window: Window) -> Gaps:
        """Where updates are missing in a window."""
        # In order of step: a clock that was set back puts them in another order of x, and that is no gap.
        cells = window.updates[np.argsort(window.updates["first"], kind="stable")]
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
        """The places of points, of which ``x`` [p] are in order, behind which a gap comes before the next; its ends."""
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
    """Whether cells have every step from their first to their last."""
    if not len(cells):
        return True
    steps = int(cells["last"].max()) - int(cells["first"].min()) + 1
    return int(cells["n"].sum()) == steps


def _merged(starts: Floats, stops: Floats) -> Gaps:
    """Without those that a clock which was set back turned around, and with those as one that touch."""
    order = np.argsort(starts, kind="stable")
    order = order[(stops > starts)[order]]
    starts, stops = starts[order], np.maximum.accumulate(stops[order])
    begins = np.append(True, starts[1:] > stops[:-1])[: len(starts)]
    ends = np.append(begins[1:], True)[: len(starts)]
    return Gaps(starts[begins], stops[ends])


@dataclass(frozen=True, slots=True)
class Broken:
    """Points with others put in at gaps: ``taken`` [q] are those that they were, ``x`` where they stand now.

    ``empty`` says which of them stand for nothing: a line breaks there.
    """

    taken: Ints
    x: Ints | Floats
    empty: Flags


def _whole(x: Ints | Floats) -> Broken:
    """Points as they are."""
    return Broken(np.arange(len(x)), x, np.zeros(len(x), bool))


def broken(x: Ints | Floats, gaps: Gaps, *, held: bool) -> Broken:
    """Points in order of x [p], with a break where a gap begins; a ``held`` value lasts until there.

    Where nothing comes behind a gap but the end to which the newest value is held, that is empty too.
    """
    places, starts, _ = gaps.between(x)
    if not len(places):
        return _whole(x)
    put = 1 + held
    at = np.repeat(places + 1, put)
    empty = np.zeros(len(x), bool)
    empty[-1] = held and places[-1] == len(x) - 2
    return Broken(
        np.insert(np.arange(len(x)), at, np.repeat(places, put)),
        np.insert(x.astype(np.float64), at, np.repeat(starts, put)),
        np.insert(empty, at, np.tile([False] * held + [True], len(places))),
    )


def apart(x: Ints | Floats, gaps: Gaps) -> Broken:
    """Centres of a heatmap's columns in order [p], with two empty columns in each gap.

    A column is drawn until half way to the next one's centre.
    """
    places, starts, stops = gaps.between(x)
    if not len(places):
        return _whole(x)
    middle, wide = (starts + stops) / 2, stops - starts
    left = np.clip(2 * starts - x[places], x[places] + wide / 100, middle - wide / 8)
    right = np.clip(2 * stops - x[places + 1], middle + wide / 8, x[places + 1] - wide / 100)
    at = np.repeat(places + 1, 2)
    return Broken(
        np.insert(np.arange(len(x)), at, np.repeat(places, 2)),
        np.insert(x.astype(np.float64), at, np.stack([left, right], axis=1).ravel()),
        np.insert(np.zeros(len(x), bool), at, True),
    )


def shades(window: Window, view: View) -> list[dict[str, Any]]:
    """Plotly's shapes of the gaps of a window, below what is drawn."""
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
