"""Exponents of the scaled gradient: a heatmap of counts against step, with the limits of fp16 drawn in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon.formats import FP16
from ampmon.histogram import EXPONENT_MIN
from ampmon_server.figures.gaps import Gaps, apart
from ampmon_server.figures.judged import GRID_DEFINITION, Judged, judge, scope, why_no_samples
from ampmon_server.figures.layout import (
    AXES,
    Figure,
    Trace,
    beside,
    empty,
    figure,
    level,
    middles,
    plot_x,
    powers_of_two,
    y_axis,
)
from ampmon_server.figures.source import Source, View, Window, cut
from ampmon_server.figures.typed import typed
from ampmon_server.series import Floats, Ints
from ampmon_server.words import count, plural


# A row is centred on its exponent, so a limit lies half a row below the first exponent that is within it.
LIMITS = (
    (FP16.exponent_max + 0.5, "overflow: 65\u202f504"),
    (FP16.exponent_min_normal - 0.5, "subnormal: 2<sup>-14</sup>"),
    (FP16.exponent_min_subnormal - 0.5, "grid: 2<sup>-24</sup>"),
)

META = {
    "title": "Exponents of the scaled gradient",
    "definitions": {
        "scaled gradient": ".grad as backward leaves it: multiplied by the loss scale, before unscaling "
        "and clipping. It is what fp16 has to hold.",
        "exponent": "k, for elements of magnitude 2^k up to 2^(k+1). Doubling the scale moves all of them up by one.",
        "overflow": "Above 65 504 fp16 has only infinity, and the update is skipped.",
        "subnormal": "Below 2^-14 fp16 holds a number with fewer bits the smaller it is.",
        "grid": "2^-24 is fp16's smallest number: half of it and less becomes zero.",
        "fp16's grid": GRID_DEFINITION,
    },
}


@dataclass(frozen=True, slots=True)
class Band:
    """Rows of the heatmap: ``heights`` [r] of their centres, ``counts`` [r, c], and what a row is called on hover."""

    heights: Floats
    counts: Floats
    word: str


def exponents(source: Source, view: View) -> Figure:
    """A column for each sampled update; where several share one, the mean of their counts, and the most inf and NaN."""
    window = cut(source, view)
    judged = judge(window, view)
    if judged is None:
        return empty(META, why_no_samples(window, source, view))
    bands = _bands(judged)
    low = min(float(band.heights[0]) for band in bands) - 0.75
    high = max(FP16.exponent_max + 2.0, *(float(band.heights[-1]) + 0.75 for band in bands))
    return figure(
        [_heatmap(band, judged, window, view) for band in bands],
        window,
        view,
        height=400,
        top=36 + _label(view),
        meta={**META, "caption": _caption(judged)},
        yaxis=y_axis(range=[low, high], showgrid=False, **_ticks(bands)),
        coloraxis=_colours(int(judged.of("elements_most").max()), view),
        shapes=[line for height, _ in LIMITS for line in _limit(height)],
        annotations=[beside(height, words, "ink", view) for height, words in LIMITS],
    )


def _bands(judged: Judged) -> list[Band]:
    """The exponents that occur; apart from them a row of zeros below, and one of inf and NaN above if there are any."""
    samples = judged.of("samples")
    histogram = judged.of("histogram") / samples[:, None]
    held = np.flatnonzero(histogram.any(0))
    bins = np.arange(held[0], held[-1] + 1) if len(held) else np.array([-EXPONENT_MIN])
    heights = bins + float(EXPONENT_MIN)
    zeros = judged.of("zeros") / samples
    lost = judged.of("lost_most").astype(np.float64)  # of one sample alone, too, it must be seen
    bands = [
        Band(heights, histogram[:, bins].T, "2^%{y:d}"),
        Band(np.array([min(heights[0], -24) - 2]), zeros[None], "zero"),
    ]
    if lost.any():
        bands.append(Band(np.array([max(heights[-1], 15) + 2]), lost[None], "inf or NaN"))
    return bands


def _heatmap(band: Band, judged: Judged, window: Window, view: View) -> Trace:
    where = "%{x|%X}" if view.x == "time" else f"{AXES[view.x]} %{{x:,d}}"
    # NaN leaves a cell empty: none is not a small count.
    columns = apart(middles(judged.x, judged.at("last")), Gaps.of(window))
    counts = np.where(columns.empty, 0.0, band.counts[:, columns.taken])
    colour = np.where(counts > 0, np.log10(1.0 + counts), np.nan)
    return {
        "type": "heatmap",
        "x": _column_x(columns.x, window, view),
        "y": typed(band.heights),
        "z": typed(colour.astype(np.float32)),
        "customdata": typed(_few_bytes(counts)),
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "hovertemplate": f"{where}<br>{band.word}: %{{customdata:,.2~f}} elements<extra></extra>",
    }


def _few_bytes(counts: Floats) -> Ints | npt.NDArray[np.float32]:
    """Counts as whole numbers where they are, as they are of one sample; means to seven digits."""
    whole = counts.astype(np.int64)
    return whole if (whole == counts).all() else counts.astype(np.float32)


def _column_x(x: Ints | Floats, window: Window, view: View) -> dict[str, str]:
    """Where columns are centred; a lone one is given by its edges, wide enough to be seen."""
    if len(x) > 1:
        return plot_x(x, view)
    half = max(0.5, (window.high - window.low) / 200)
    return plot_x(np.array([x[0] - half, x[0] + half]), view)


def _ticks(bands: list[Band]) -> dict[str, Any]:
    """Powers of two along the exponents, and the names of the rows apart."""
    exponents = bands[0].heights
    ticks = powers_of_two(min(float(exponents[0]), -24.0), max(float(exponents[-1]), 15.0))
    values, texts = ticks["tickvals"], ticks["ticktext"]
    for band in bands[1:]:
        values.append(float(band.heights[0]))
        texts.append("zero" if band.word == "zero" else "inf")
    return {"tickvals": values, "ticktext": texts}


def _label(view: View) -> int:
    """Pixels above the plot that the label of its uppermost line takes, where labels stand within its width."""
    return 16 if view.narrow else 0


def _colours(elements: int, view: View) -> dict[str, Any]:
    """One colour for one count, whatever the window shows."""
    # The bar has room for three labels.
    stride = 1 if elements < 1_000 else 2 if elements < 1_000_000 else 3
    powers = range(0, len(str(elements)), stride)
    return {
        "colorscale": "role:counts",
        "cmin": 0,
        "cmax": float(np.log10(1 + elements)),
        "colorbar": {
            "orientation": "h",
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "yanchor": "bottom",
            "ypad": _label(view),
            "lenmode": "pixels",
            "len": 200,
            "thickness": 8,
            "outlinewidth": 0,
            "ticklen": 2,
            "tickangle": 0,
            "title": {"text": "elements ", "side": "right", "font": {"size": 12}},
            "tickvals": [float(np.log10(1 + 10**power)) for power in powers],
            "ticktext": [count(10**power) for power in powers],
        },
    }


def _limit(height: float) -> list[dict[str, Any]]:
    """A line that stands out from every colour of the map: a thin one on a wider one of the background."""
    return [
        level(height, "background", width=3),
        level(height, "ink", width=1),
    ]


def _caption(judged: Judged) -> str:
    merged = int(judged.of("samples").max())
    shared = (
        f" Up to {count(merged)} samples share a column: the mean of their counts, and the most inf and NaN of any."
        if merged > 1
        else ""
    )
    return f"{plural(len(judged), 'sampled update')}. {scope(judged)}{shared}"
