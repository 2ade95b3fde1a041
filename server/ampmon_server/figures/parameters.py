"""Each parameter along the steps: a heatmap of one statistic, a row a parameter in the order of the model.

Says where in the network gradients are lost, and since when. A column shows the worst of its samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon.formats import FP16
from ampmon_server.cells.merging import Cells, starts_of
from ampmon_server.cells.parameters import layout
from ampmon_server.downsample import aligned_span
from ampmon_server.figures.gaps import Gaps, apart
from ampmon_server.figures.judged import why_no_samples
from ampmon_server.figures.layout import (
    AXES,
    Figure,
    Trace,
    empty,
    figure,
    middles,
    plot_x,
    y_axis,
)
from ampmon_server.figures.source import ParameterSource, Source, View, Window, XAxis, cut
from ampmon_server.figures.typed import typed
from ampmon_server.series import Floats, Ints
from ampmon_server.words import count, percent, plural


COLUMN_PIXELS = 8
"""Samples within as many pixels share a column."""

ROWS_MAX = 300
"""Of more parameters, those that lose most are drawn."""

ROW_PIXELS = 4
HEIGHT_MIN, HEIGHT_MAX = 160, 720
LABEL_PIXELS = 14
LABEL_LETTERS = 10


@dataclass(frozen=True, slots=True)
class Statistic:
    """What is drawn: the ``field`` of cells that holds the worst of their samples, and what it is called.

    ``short`` is what stands beside the colours.
    """

    field: str
    word: str
    short: str
    hover: str
    share: bool


STATISTICS: Mapping[str, Statistic] = {
    "subnormal": Statistic(
        "subnormal_max", "subnormal or below grid", "subnormal", "%{z:.3~%}", True
    ),
    "zero": Statistic("zero_max", "zero", "zero", "%{z:.3~%}", True),
    "headroom": Statistic("amax", "headroom", "bits", "%{z:.1f} bits", False),
    "norm": Statistic("norm", "norm", "log10", "10^%{z:.2f}", False),
    "on_grid": Statistic("on_grid_min", "on fp16's grid", "on grid", "%{z:.3~%}", True),
}

META = {
    "title": "Gradients by parameter",
    "definitions": {
        "subnormal or below grid": "Elements of the scaled gradient below 2^-14 that are not zero: held with fewer "
        "bits the smaller they are, or lost.",
        "zero": "Elements that are exactly zero, whether fp16 flushed them or they always were.",
        "headroom": "Bits between the largest element and fp16's largest number, 65 504.",
        "norm": "The 2-norm of the unscaled gradient.",
        "on fp16's grid": "Elements that are exactly fp16 numbers; where fewer than 99 % are, fp32 made them.",
        "a column": "Shows the worst of its samples: the largest share or norm, the least headroom or share on "
        "the grid.",
    },
}


def parameters(source: Source, view: View) -> Figure:
    """A row for each parameter, a column for each sampled update or for some of them."""
    window, of = cut(source, view), source.parameters
    if of is None or not len(of.cells):
        return empty(META, why_no_samples(window, source, view))
    statistic = STATISTICS[of.statistic]
    axis = XAxis(view.x, source.user)
    columns, x = _columns(of, axis, window, view)
    if not len(columns):
        return empty(META, why_no_samples(window, source, view))
    rows = _rows(columns)
    z = _values(columns, of.statistic)[:, rows].T
    names = [of.names[row] for row in rows.tolist()]
    height = int(np.clip(len(rows) * ROW_PIXELS, HEIGHT_MIN, HEIGHT_MAX))
    return figure(
        [_heatmap(z, names, x, statistic, window, view)],
        window,
        view,
        height=height + 76,
        top=36,
        meta={
            **META,
            "caption": _caption(of, columns, rows, statistic),
            "choices": [
                {
                    "name": "statistic",
                    "label": "What is drawn of each parameter",
                    "chosen": of.statistic,
                    "options": [[each, STATISTICS[each].word] for each in STATISTICS],
                }
            ],
        },
        yaxis=y_axis(
            type="category",
            autorange="reversed",
            showgrid=False,
            categoryorder="array",
            categoryarray=names,
            **_ticks(names, height),
        ),
        coloraxis=_colours(z, statistic),
    )


def _columns(
    of: ParameterSource, axis: XAxis, window: Window, view: View
) -> tuple[Cells, Ints | Floats]:
    """The cells of pixel columns, and where each is centred."""
    at = axis.of(of.cells["first"], of.cells["time_min"])
    order = np.argsort(at, kind="stable")
    order = order[(at[order] >= window.low) & (at[order] <= window.high)]
    cells, at = of.cells[order], at[order]
    span = aligned_span(window.low, window.high, max(view.columns // COLUMN_PIXELS, 2))
    starts = starts_of(np.floor_divide(at, span).astype(np.int64))
    ends = np.append(starts, len(at))[1:] - 1
    return layout(len(of.names)).merge(cells, starts), middles(at[starts], at[ends])


def _rows(columns: Cells) -> Ints:
    """The parameters that are drawn, in their order: of those ever looked at, those that lose most."""
    looked = _of(columns, "looked").sum(0)
    rows = np.flatnonzero(looked)
    if len(rows) > ROWS_MAX:
        lost = np.fmax.reduce(_of(columns, "zero_max") + _of(columns, "subnormal_max"), axis=0)
        worst = np.argsort(-np.nan_to_num(lost[rows]), kind="stable")[:ROWS_MAX]
        rows = rows[np.sort(worst)]
    return rows


def _of(columns: Cells, name: str) -> Any:
    values = columns[name]
    return values if values.ndim > 1 else values[:, None]


def _values(columns: Cells, name: str) -> Floats:
    """What is drawn, [columns, parameters]; NaN where nothing was looked at."""
    values: Floats = _of(columns, STATISTICS[name].field)
    with np.errstate(divide="ignore", invalid="ignore"):
        if name == "headroom":
            bits = np.log2(FP16.max) - np.log2(values)
            return np.asarray(np.clip(bits, -1.0, 41.0), np.float64)
        if name == "norm":
            return np.asarray(np.clip(np.log10(values), -45.0, 39.0), np.float64)
    return values


def _heatmap(
    z: Floats,
    names: Sequence[str],
    x: Ints | Floats,
    statistic: Statistic,
    window: Window,
    view: View,
) -> Trace:
    where = "%{x|%X}" if view.x == "time" else f"{AXES[view.x]} %{{x:,d}}"
    columns = apart(x, Gaps.of(window))
    x, z = columns.x, np.where(columns.empty, np.nan, z[:, columns.taken])
    if len(x) == 1:
        half = max(0.5, (window.high - window.low) / 200)
        x = np.array([x[0] - half, x[0] + half])
    return {
        "type": "heatmap",
        "x": plot_x(x, view),
        "y": list(names),
        "z": typed(z.astype(np.float32)),
        "coloraxis": "coloraxis",
        "hoverongaps": False,
        "hovertemplate": f"%{{y}}<br>{where}: {statistic.hover} {statistic.word}<extra></extra>",
    }


def _ticks(names: Sequence[str], height: int) -> dict[str, Any]:
    """The names of some rows: of all where there is room, else of where a block begins, the larger blocks first."""
    apart = max(1, -(-len(names) * LABEL_PIXELS // height))
    texts = [_short(name) for name in names]
    kept = list(range(len(names)))
    # A last word alone, such as "weight", would tell nothing.
    cut = [name for name, text in zip(names, texts, strict=True) if "." in name and "." not in text]
    if apart > 1 or cut:
        blocks = [_block(name) for name in names]
        first = [row for row in kept if row == 0 or blocks[row - 1] != blocks[row]]
        rows = dict(zip(first, np.diff([*first, len(names)]).tolist(), strict=True))
        kept, texts = [], [_short(block) for block in blocks]
        for row in sorted(rows, key=lambda row: -rows[row]):
            if all(abs(row - other) >= apart for other in kept):
                kept.append(row)
    return {
        "tickvals": [names[row] for row in kept],
        "ticktext": [texts[row] for row in kept],
        "tickfont": {"size": 10},
        "ticks": "",
    }


def _block(name: str) -> str:
    """The part of the model that a parameter is in: up to the first number in its name, else up to its last word."""
    parts = name.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: max(numbered + 1, 1)])


def _short(name: str) -> str:
    """As much of the end of a name as there is room for beside the plot, in whole words if they fit."""
    parts = name.split(".")
    while len(parts) > 1 and len(".".join(parts)) > LABEL_LETTERS:
        parts.pop(0)
    short = ".".join(parts)
    return short if len(short) <= LABEL_LETTERS else f"…{short[1 - LABEL_LETTERS :]}"


def _colours(z: Floats, statistic: Statistic) -> dict[str, Any]:
    """From none to all where it is a share that is lost; from what is worst where less is worse."""
    finite = z[np.isfinite(z)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if statistic.share:
        low, high = (0.0, max(high, 0.01)) if statistic.field != "on_grid_min" else (low, 1.0)
    bar = {
        "orientation": "h",
        "x": 1,
        "xanchor": "right",
        "y": 1,
        "yanchor": "bottom",
        "ypad": 0,
        "lenmode": "pixels",
        "len": 200,
        "thickness": 8,
        "outlinewidth": 0,
        "ticklen": 2,
        "nticks": 4,
        "tickangle": 0,
        "tickformat": ".3~%" if statistic.share else ".3~g",
        "title": {"text": f"{statistic.short} ", "side": "right", "font": {"size": 12}},
    }
    less = statistic.field in {"amax", "on_grid_min"}
    return {
        "colorscale": "role:counts",
        "reversescale": less,
        "cmin": low,
        "cmax": max(high, low + 1e-9),
        "colorbar": bar,
    }


def _caption(of: ParameterSource, columns: Cells, rows: Ints, statistic: Statistic) -> str:
    samples, most = int(columns["n"].sum()), int(columns["n"].max())
    newest = columns[int(columns["last"].argmax())]
    looked, lost = (int(np.sum(newest[name])) for name in ("looked", "subnormal"))
    parts = [f"{plural(samples, 'sampled update')}, {plural(len(rows), 'parameter')}."]
    if looked:
        parts.append(f"{percent(lost / looked)} of the newest are subnormal or below the grid.")
    left_out = int(np.count_nonzero(_of(columns, "looked").sum(0))) - len(rows)
    if left_out:
        parts.append(f"{plural(left_out, 'parameter')} that lose less left out.")
    if most > 1:
        parts.append(f"Up to {count(most)} samples share a column: the worst of them.")
    if of.shard is not None:
        parts.append(f"Of the shard of rank {count(of.shard)}.")
    return " ".join(parts)
