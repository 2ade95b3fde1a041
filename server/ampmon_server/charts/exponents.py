"""Exponents of the unscaled gradient: a heatmap of counts against step, with the window of a number format over it.

The window slides down as the scale goes up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon.numerics.formats import FloatFormat
from ampmon.numerics.histogram import EXPONENT_MIN
from ampmon_server.analysis.whatif import FORMATS, LEVELS
from ampmon_server.charts.parts.chart import chart, why_no_samples
from ampmon_server.charts.parts.layout import (
    Figure,
    beside,
    colour_bar,
    figure,
    format_choice,
    hovered_x,
    powers_of_two,
    y_axis,
)
from ampmon_server.charts.parts.samples import GRID_DEFINITION, JudgedGradients, judge, scope
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import GappedPoints, Trace, apart, band, edges, heatmap, line
from ampmon_server.charts.parts.window import Window, typed
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, digits_of, plural, two_to


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
class ExponentRows:
    """Rows of the heatmap: the ``heights`` [r] of their centres, their ``counts`` [r, c], and their name on hover."""

    heights: Floats
    counts: Floats
    word: str


@chart(
    title="Gradient magnitude distribution",
    order=50,
    choices=("format", "rank"),
    sampled=True,
    definitions={
        "unscaled gradient": "The true gradient: .grad divided by the loss scale at which it was computed, before "
        "clipping. Its exponents do not change with the scale.",
        "exponent": "k, for elements of magnitude 2ᵏ up to 2ᵏ⁺¹, unscaled.",
        "window": "The magnitudes that a number format can hold at the current scale: doubling the scale moves the "
        "window down by one exponent. Larger values become infinity, smaller ones zero.",
        "overflow": "Above its largest number, 65\u202f504 in fp16, a format has only infinity (E4M3 only NaN), and "
        "the step is skipped.",
        "subnormal": "Below this limit, 2⁻¹⁴ in fp16, the smaller the number, the fewer bits a format keeps.",
        "smallest": "A format's smallest number, 2⁻²⁴ in fp16: half of it and less becomes zero.",
        "lost": "Shares of all elements drawn here, as if all had the slider's scale. Below range means below the "
        "smallest number. Zero, inf and NaN have no exponent and are not included: What if estimates how many "
        "of the zeros another scale recovers.",
        "fp16-representable": GRID_DEFINITION,
    },
)
def exponents(window: Window) -> Figure | str:
    """Draw a column for each sampled update. If several share one, show their mean counts and the most inf and NaN."""
    view, held = window.view, window.gradients[np.isfinite(_levels(window.gradients))]
    judged = judge(replace(window, gradients=held))
    if judged is None:
        dead = "No sample here has a positive scale to divide by."
        return why_no_samples(window) if judge(window) is None else dead
    levels = _levels(judged.cells)
    columns = apart(judged.centres, window.gaps)
    x = edges(columns.x, window)
    shown = np.resize(np.where(columns.empty, np.nan, levels[columns.taken]), len(x))
    slide = FormatWindow.along(x, shown, FORMATS[view.format])
    level = int(levels[judged.newest_column])
    exponents, counts = _unscaled(judged)
    low, high = slide.reach(float(exponents[0]) - 0.5, float(exponents[-1]) + 0.5)
    mean = counts / judged.of("samples")
    bands = [ExponentRows(exponents, mean, "2<sup>%{y:d}</sup>"), *_apart(judged, low, high)]
    bottom, top = low - 2.25, high if len(bands) == 2 else high + 2.25
    heatmaps = [_heatmap(band, columns, window) for band in bands]
    # The newest scale is the start of the slider, and extends its range if it is beyond.
    slider = {"low": min(LEVELS[0], level), "high": max(LEVELS[-1], level), "value": level}
    limits = {"format": slide.format.name, **begins(slide.format), "low": low, "high": high}
    return figure(
        [*heatmaps, *slide.traces(low, high, window)],
        window,
        height=400,
        top=36 + _label(view),
        caption=_caption(judged, level, slide.format),
        meta={
            "choices": [format_choice("window", view)],
            "slider": slider,
            "window": {
                **limits,
                "first": int(exponents[0]),
                "counts": counts.sum(1, dtype=np.int64).tolist(),
                "elements": max(int(judged.classes().total.sum()), 1),
            },
        },
        yaxis=y_axis(range=[bottom, top], showgrid=False, **_ticks(bands, low, high)),
        coloraxis=_colours(int(judged.of("elements_most").max()), view),
        annotations=slide.labels(low, high, window),
    )


def _levels(cells: Cells) -> Floats:
    """Return log2 of each cell's newest scale, rounded so that rows stay aligned; NaN if that is no number."""
    scale = cells["scale_last"]
    return np.rint(np.log2(np.where((scale > 0) & np.isfinite(scale), scale, np.nan)))


def _unscaled(judged: JudgedGradients) -> tuple[Floats, Ints]:
    """Return the exponents that occur [r], and the counts [r, c] of all samples, each moved down by its own level."""
    cells, starts = judged.apart
    histogram, levels = cells[f"{judged.side}_histogram"], _levels(cells)
    cell, held = np.nonzero(histogram)
    if not len(held):
        return -levels[-1:] + EXPONENT_MIN, np.zeros((1, len(starts)), np.int64)
    exponent = (held + EXPONENT_MIN - levels[cell]).astype(np.int64)
    rows = np.arange(exponent.min(), exponent.max() + 1)
    counts = np.zeros((len(rows), len(cells)), np.int64)
    counts[exponent - rows[0], cell] = histogram[cell, held]
    return rows.astype(np.float64), np.add.reduceat(counts, starts, axis=1)


def _apart(judged: JudgedGradients, low: float, high: float) -> list[ExponentRows]:
    """Return rows apart from the exponents: zeros below, and inf and NaN above if there are any."""
    zeros = judged.of("zeros") / judged.of("samples")
    lost = judged.of("lost_most").astype(np.float64)  # a mean would hide a single sample
    bands = [ExponentRows(np.array([low - 1.5]), zeros[None], "zero")]
    if lost.any():
        bands.append(ExponentRows(np.array([high + 1.5]), lost[None], "inf or NaN"))
    return bands


def _heatmap(band: ExponentRows, columns: GappedPoints, window: Window) -> Trace:
    # NaN leaves a cell empty, so that zero does not look like a small count.
    counts = np.where(columns.empty, 0.0, band.counts[:, columns.taken])
    colour = np.where(counts > 0, np.log10(1.0 + counts), np.nan)
    hover = f"{hovered_x(window)}<br>{band.word}: %{{customdata:,.2~f}} elements"
    held = {"customdata": typed(_few_bytes(counts))}
    return heatmap(columns, typed(band.heights), colour, hover, window, **held)


def _few_bytes(counts: Floats) -> Ints | npt.NDArray[np.float32]:
    """Return counts as integers if they are whole, as of one sample; else means to seven digits."""
    whole = counts.astype(np.int64)
    return whole if (whole == counts).all() else counts.astype(np.float32)


def _ticks(bands: list[ExponentRows], low: float, high: float) -> dict[str, Any]:
    """Powers of two along the exponents, and the names of the rows apart."""
    room = 0.04 * (high - low)
    along = powers_of_two(low + room, high - room)
    along["tickvals"] += [float(band.heights[0]) for band in bands[1:]]
    along["ticktext"] += ["zero" if band.word == "zero" else "inf" for band in bands[1:]]
    return along


def _label(view: View) -> int:
    """Pixels above a narrow plot for the label of its uppermost line. Other plots have labels in the margin."""
    return 16 if view.narrow else 0


def _colours(elements: int, view: View) -> dict[str, Any]:
    """A count has the same colour whatever the window shows."""
    # The bar has room for three labels.
    stride = 1 if elements < 1_000 else 2 if elements < 1_000_000 else 3
    powers = [10**power for power in range(0, len(str(elements)), stride)]
    at = {"tickvals": [float(np.log10(1 + power)) for power in powers]}
    named = {"ticktext": [count(power) for power in powers]}
    return {
        "colorscale": "role:counts",
        "cmin": 0,
        "cmax": float(np.log10(1 + elements)),
        "colorbar": colour_bar("elements", ypad=_label(view), **at, **named),
    }


def _caption(judged: JudgedGradients, level: int, held: FloatFormat) -> str:
    """Describe what is judged, and what the format ``held`` holds at the newest scale, 2^``level``."""
    bottom, top = held.exponent_min_subnormal - level, held.exponent_max + 1 - level
    reach = f"At the newest scale {held.name} holds magnitudes from {two_to(bottom)} to below {two_to(top)}."
    merged = int(judged.of("samples").max())
    shared = (
        f" Up to {count(merged)} samples share a column: it shows the mean of their counts, and their largest counts "
        "of inf and NaN."
        if merged > 1
        else ""
    )
    return f"{plural(len(judged), 'sampled step')}. {scope(judged)} {reach}{shared}"


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
