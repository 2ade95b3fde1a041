"""One parameter along the steps: its elements too small for fp16, its largest element, and its norm.

For a pixel column, shares are of all its samples together, and magnitudes and norms are the largest of any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ampmon.numerics.formats import FP16
from ampmon_server.charts.parts.chart import chart, why_no_samples
from ampmon_server.charts.parts.layout import (
    Figure,
    beside,
    figure,
    hovered_x,
    level,
    panel_label,
    powers_of_two,
    share_ticks,
    ticks,
    x_axis,
    y_axis,
)
from ampmon_server.charts.parts.samples import COLUMN_PIXELS, in_window, merged
from ampmon_server.charts.parts.traces import CROSS, Trace, broken, dotted
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, digits_of, magnitude_of, percent, plural


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


@chart(
    title="Parameter over time",
    order=70,
    reads="parameter",
    tab="gradients",
    choices=("parameter",),
    sampled=True,
    parameter=True,
    definitions={
        "subnormal or below range": "Nonzero elements of the scaled gradient below 2⁻¹⁴: the smaller the value, the "
        "fewer bits fp16 keeps, down to none.",
        "zero": "Elements that are exactly zero, whether fp16 flushed them or they always were.",
        "largest magnitude": "Of the scaled gradient: the distance to 65 504 is the headroom. If only some of the "
        "elements were sampled, it is a lower bound.",
        "norm": "The 2-norm of the unscaled gradient: it does not change with the loss scale.",
    },
)
def parameter(window: Window) -> Figure | str:
    """Draw the chosen parameter: shares of its elements, its largest magnitude in fp16's window, and its norm."""
    view, of = window.view, window.source.parameters
    if of is None or view.parameter is None:
        return CHOOSE
    if view.parameter not in of.names:
        return f"No gradient of a parameter named {view.parameter!r} was sampled in this run."
    place = of.names.index(view.parameter)
    cells, at = in_window(of.cells, window)
    looked = wide(cells, "looked")[:, place] > 0
    cells, at = cells[looked], at[looked]
    if not len(cells):
        return why_no_samples(window)
    cells, x = merged(cells, at, len(of.names), window, view.columns // COLUMN_PIXELS)
    columns = _Columns(cells, x, place, window)
    shares = {words: columns.of(field) / columns.of("looked") for field, _, words in SHARES}
    bits, decades = (
        _logarithm(columns.of("amax"), np.log2),
        _logarithm(columns.of("norm"), np.log10),
    )
    norms = [f"norm {digits_of(each, 3)}" for each in columns.of("norm").tolist()]
    most = max(0.01, *(float(share.max()) for share in shares.values()))
    across = {**share_ticks(0.0, 1.08 * most), "range": [-0.02 * most, 1.08 * most]}
    return figure(
        [
            *_shares(columns, shares),
            *_magnitude(columns, bits),
            columns.trace("norm", "y3", decades, norms, line=_line("accent")),
        ],
        window,
        height=448,
        top=24,
        caption=_caption(columns, of.shard),
        meta={"bases": {"y2": 2, "y3": 10}},
        xaxis={**x_axis(window), "anchor": "y3"},
        yaxis=y_axis(domain=PANELS["y"], **across),
        yaxis2=y_axis(domain=PANELS["y2"], showgrid=False, **_magnitudes(bits)),
        yaxis3=y_axis(domain=PANELS["y3"], **_norms(decades)),
        shapes=[level(height, "muted", yref="y2", dash="dot") for height, _ in LEVELS],
        annotations=[
            *(beside(at, words, "muted", view, yref="y2") for at, words in LEVELS),
            *_titles(),
        ],
    )


class _Columns:
    """The columns [c] of one parameter. Lines break where records are missing."""

    def __init__(self, cells: Cells, x: Ints | Floats, place: int, window: Window) -> None:
        self.samples: Ints = cells["n"]
        self._cells = cells
        self._place = place
        self._window = window
        self._points = broken(x, window.gaps)

    def of(self, name: str) -> Any:
        return wide(self._cells, name)[:, self._place]

    def trace(self, name: str, yaxis: str, y: Floats, said: list[str], **style: Any) -> Trace:
        """Draw a line through ``y`` [c], with ``said`` [c] as the hover texts."""
        hover = f"{hovered_x(self._window)}<br>%{{text}}<extra></extra>"
        keys = {**dotted(len(y)), "hovertemplate": hover, "name": name}
        return self._points.line(y, self._window, said, **keys | style, yaxis=yaxis)


def _line(role: str) -> dict[str, Any]:
    return {"width": 1.5, "color": f"role:{role}"}


def _shares(columns: _Columns, shares: Mapping[str, Floats]) -> list[Trace]:
    traces = []
    for _, role, words in SHARES:
        said = [f"{percent(each)} {words}" for each in shares[words].tolist()]
        traces.append(columns.trace(words, "y", shares[words], said, line=_line(role)))
    return traces


def _magnitude(columns: _Columns, bits: Floats) -> list[Trace]:
    """Draw the largest element of each column, and a cross at the top of each column that overflowed."""
    amax = columns.of("amax")
    room = np.log2(FP16.max) - bits
    said = [
        f"largest {magnitude_of(each)}, headroom {left:.1f} bits"
        for each, left in zip(amax.tolist(), room.tolist(), strict=True)
    ]
    line = columns.trace("largest magnitude", "y2", bits, said, line=_line("accent"))
    lost = np.isinf(amax)
    if not lost.any():
        return [line]
    top, said = np.where(lost, np.log2(FP16.max), np.nan), ["inf or NaN"] * len(lost)
    cross = {"mode": "markers", "marker": {**CROSS, "size": 8}}
    return [line, columns.trace("inf or NaN", "y2", top, said, **cross)]


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
    powers = np.arange(low, high + 1, max(1, -(-(high - low) // 3)))
    return {
        "range": [low - 0.1, high + 0.1],
        **ticks({power: f"10<sup>{power:.0f}</sup>" for power in powers.tolist()}),
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


def _caption(columns: _Columns, shard: int | None) -> str:
    samples, most = int(columns.samples.sum()), int(columns.samples.max())
    parts = [f"{plural(samples, 'sampled step')}."]
    lost = int(np.isinf(columns.of("amax")).sum())
    if lost:
        parts.append(f"Overflowed in {plural(lost, 'column')}.")
    if most > 1:
        words = "shares are of all of them, magnitude and norm are the largest"
        parts.append(f"Up to {count(most)} samples share a column: {words}.")
    if shard is not None:
        parts.append(f"Shows the shard of rank {count(shard)}.")
    return " ".join(parts)
