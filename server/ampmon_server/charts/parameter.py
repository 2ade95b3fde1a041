"""One parameter along the steps: its elements too small for fp16, its largest element, and its norm.

For a pixel column, shares are of all its samples together, and magnitudes and norms are the largest of any.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon_server.charts.parts.layout import (
    beside,
    empty,
    figure,
    hovered_x,
    level,
    panel_label,
    powers_of_two,
    why_no_samples,
    x_axis,
    y_axis,
)
from ampmon_server.charts.parts.samples import in_window, merged
from ampmon_server.charts.parts.source import (
    Chart,
    Figure,
    ParameterSource,
    Source,
    View,
    Window,
    cut,
)
from ampmon_server.charts.parts.traces import Gaps, Trace, broken
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, magnitude_of, percent, plural


COLUMN_PIXELS = 4
"""Samples within this many pixels share a column."""

PANELS = {"y": [0.72, 1.0], "y2": [0.26, 0.64], "y3": [0.0, 0.18]}
"""From top to bottom: shares, the largest magnitude, and the norm."""

LEVELS = (
    (float(np.log2(FP16.max)), "overflow: 65\u202f504"),
    (float(FP16.exponent_min_normal), "subnormal: 2<sup>-14</sup>"),
    (float(FP16.exponent_min_subnormal), "smallest: 2<sup>-24</sup>"),
)

SHARES = (("subnormal", "subnormal", "subnormal or below range"), ("zeros", "zero", "zero"))
"""The field, the role and the words of each line of shares."""

CHOOSE = "No parameter is chosen: click on a row of the heatmap, or on a name in the table."

META = {
    "title": "Parameter over time",
    "definitions": {
        "subnormal or below range": "Nonzero elements of the scaled gradient below 2⁻¹⁴: the smaller the value, the "
        "fewer bits fp16 keeps, down to none.",
        "zero": "Elements that are exactly zero, whether fp16 flushed them or they always were.",
        "largest magnitude": "Of the scaled gradient: the distance to 65 504 is the headroom. If only some of the "
        "elements were sampled, it is a lower bound.",
        "norm": "The 2-norm of the unscaled gradient: it does not change with the loss scale.",
    },
}


def parameter(source: Source, view: View) -> Figure:
    """Draw the chosen parameter: shares of its elements, its largest magnitude in fp16's window, and its norm."""
    window, of = cut(source, view), source.parameters
    if of is None or of.chosen is None:
        return empty(META, CHOOSE)
    if of.chosen not in of.names:
        return empty(
            META, f"No gradient of a parameter named {of.chosen!r} was sampled in this run."
        )
    place = of.names.index(of.chosen)
    cells, at = in_window(of.cells, window)
    looked = wide(cells, "looked")[:, place] > 0
    cells, at = cells[looked], at[looked]
    if not len(cells):
        return empty(META, why_no_samples(window, source, view))
    cells, x = merged(cells, at, len(of.names), window, view.columns // COLUMN_PIXELS)
    columns = _Columns(cells, x, place, window, view)
    return figure(
        [*_shares(columns), _magnitude(columns), *_overflows(columns), _norm(columns)],
        window,
        view,
        height=448,
        top=24,
        meta={**META, "caption": _caption(of, columns)},
        xaxis={**x_axis(window, view), "anchor": "y3"},
        yaxis=y_axis(domain=PANELS["y"], tickformat=".3~%", nticks=4, range=_share_range(columns)),
        yaxis2=y_axis(
            domain=PANELS["y2"],
            showgrid=False,
            **_magnitudes(_logarithm(columns.of("amax"), np.log2)),
        ),
        yaxis3=y_axis(domain=PANELS["y3"], **_norms(_logarithm(columns.of("norm"), np.log10))),
        shapes=[level(height, "muted", yref="y2", dash="dot") for height, _ in LEVELS],
        annotations=[
            *(beside(at, words, "muted", view, yref="y2") for at, words in LEVELS),
            *_titles(),
        ],
    )


class _Columns:
    """The columns [c] of one parameter. Lines break where records are missing."""

    def __init__(
        self, cells: Cells, x: Ints | Floats, place: int, window: Window, view: View
    ) -> None:
        self._cells = cells
        self._place = place
        self._view = view
        self._hovered_x = hovered_x(window, view)
        self._points = broken(x, Gaps.of(window), held=False)

    def of(self, name: str) -> Any:
        return wide(self._cells, name)[:, self._place]

    @property
    def samples(self) -> Ints:
        samples: Ints = self._cells["n"]
        return samples

    def trace(self, y: Floats, said: list[str], **keys: Any) -> Trace:
        """Draw a line through ``y`` [c], with ``said`` [c] as the hover texts."""
        style: dict[str, Any] = {
            "mode": "lines+markers" if len(y) <= 60 else "lines",
            "marker": {"size": 4},
            "hovertemplate": f"{self._hovered_x}<br>%{{text}}<extra></extra>",
        }
        return self._points.line(y, self._view, said, **style | keys)


def _shares(columns: _Columns) -> list[Trace]:
    traces = []
    for field, role, words in SHARES:
        share = columns.of(field) / columns.of("looked")
        said = [f"{percent(each)} {words}" for each in share.tolist()]
        traces.append(columns.trace(share, said, name=words, line=_line(role), yaxis="y"))
    return traces


def _share_range(columns: _Columns) -> list[float]:
    most = max(float((columns.of(field) / columns.of("looked")).max()) for field, *_ in SHARES)
    return [-0.02 * max(most, 0.01), 1.08 * max(most, 0.01)]


def _magnitude(columns: _Columns) -> Trace:
    amax = columns.of("amax")
    bits = _logarithm(amax, np.log2)
    room = np.log2(FP16.max) - bits
    said = [
        f"largest {magnitude_of(each)}, headroom {left:.1f} bits"
        for each, left in zip(amax.tolist(), room.tolist(), strict=True)
    ]
    return columns.trace(bits, said, name="largest magnitude", line=_line("accent"), yaxis="y2")


def _overflows(columns: _Columns) -> list[Trace]:
    """Draw a cross at the top of each column that overflowed."""
    lost = np.isinf(columns.of("amax"))
    if not lost.any():
        return []
    marks = columns.trace(
        np.where(lost, np.log2(FP16.max), np.nan), ["inf or NaN"] * len(lost), name="inf or NaN"
    )
    marker = {"symbol": "x", "size": 8, "color": "role:skip"}
    return [{**marks, "mode": "markers", "marker": marker, "yaxis": "y2"}]


def _norm(columns: _Columns) -> Trace:
    norm = columns.of("norm")
    said = [f"norm {each:.3g}" for each in norm.tolist()]
    height = _logarithm(norm, np.log10)
    return columns.trace(height, said, name="norm", line=_line("accent"), yaxis="y3")


def _line(role: str) -> dict[str, Any]:
    return {"width": 1.5, "color": f"role:{role}"}


def _logarithm(values: Floats, log: np.ufunc) -> Floats:
    """Return NaN for zero and for what is not finite."""
    known = np.isfinite(values) & (values > 0)
    return np.where(known, log(np.where(known, values, 1.0)), np.nan)


def _magnitudes(bits: Floats) -> dict[str, Any]:
    """Show all of fp16's window, and what is below it."""
    low = min(FP16.exponent_min_subnormal, *bits[np.isfinite(bits)].tolist(), 0.0) - 2
    return {"range": [low, FP16.exponent_max + 3.0], **powers_of_two(low, FP16.exponent_max, 5)}


def _norms(decades: Floats) -> dict[str, Any]:
    """Whole powers of ten around all norms, at least two of them."""
    held = decades[np.isfinite(decades)]
    low, high = -1.0, 0.0
    if len(held):
        low, high = float(np.floor(held.min())), float(np.ceil(held.max()))
    high = max(high, low + 1)
    ticks = np.arange(low, high + 1, max(1, -(-(high - low) // 3)))
    return {
        "range": [low - 0.1, high + 0.1],
        "tickvals": ticks.tolist(),
        "ticktext": [f"10<sup>{tick:.0f}</sup>" for tick in ticks],
    }


def _titles() -> list[dict[str, Any]]:
    """Name each panel above it. The names of the shares have the colours of their lines."""
    titles = [("y", words, role, 176 * place) for place, (_, role, words) in enumerate(SHARES)]
    titles += [
        ("y2", "largest magnitude, scaled", "accent", 0),
        ("y3", "norm, unscaled", "accent", 0),
    ]
    return [
        panel_label(words, PANELS[axis][1], role, yanchor="bottom", xshift=shift)
        for axis, words, role, shift in titles
    ]


def _caption(of: ParameterSource, columns: _Columns) -> str:
    samples, most = int(columns.samples.sum()), int(columns.samples.max())
    parts = [f"{plural(samples, 'sampled step')}."]
    lost = int(np.isinf(columns.of("amax")).sum())
    if lost:
        parts.append(f"Overflowed in {plural(lost, 'column')}.")
    if most > 1:
        words = "shares are of all of them, magnitude and norm are the largest"
        parts.append(f"Up to {count(most)} samples share a column: {words}.")
    if of.shard is not None:
        parts.append(f"Of the shard of rank {count(of.shard)}.")
    return " ".join(parts)


CHART = Chart(
    draw=parameter,
    order=70,
    reads="parameter",
    tab="gradients",
    choices=("parameter",),
    sampled=True,
    parameter=True,
)
