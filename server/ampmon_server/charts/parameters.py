"""Each parameter along the steps: a heatmap of one statistic, with a row per parameter in the order of the model.

It shows where in the network gradients are lost, and since when. A column shows the worst of its samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampmon.numerics.histogram import ON_GRID_SHARE
from ampmon.numerics.sampling_error import elements_of
from ampmon_server.charts.parts.chart import chart, why_no_samples
from ampmon_server.charts.parts.layout import (
    Figure,
    choice,
    colour_bar,
    empty,
    escaped,
    figure,
    hovered_x,
    level,
    share_ticks,
    y_axis,
)
from ampmon_server.charts.parts.rows import LEVELS, ROWS_MAX, ParameterRows, rows_of
from ampmon_server.charts.parts.samples import in_window, merged
from ampmon_server.charts.parts.source import ParameterSource
from ampmon_server.charts.parts.traces import Trace, apart, heatmap
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.parameters import wide
from ampmon_server.model.names import block_of
from ampmon_server.model.parameter_statistics import STATISTICS, Statistic, Unit
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, percent, plural


COLUMN_PIXELS = 8
"""Samples within this many pixels share a column."""

CELLS_MAX = 18_500
"""If there are too many rows for this, columns are wider: an answer stays below 100 kB or so."""

ROW_PIXELS = 4
HEIGHT_MIN, HEIGHT_MAX = 160, 720
LABEL_PIXELS = 14
LABEL_LETTERS = 10

BITS = (-1.0, 41.0)
"""The range of colours for headroom. Gradients beyond it were made in fp32."""

FAR = 9999.0
"""Stands for the logarithm of 0 or of infinity. It is beyond all others, so it has the colour of an end.

web/js/saving.js has the same number, to leave such cells out of a saved chart.
"""


_HOVER: Mapping[Unit, str] = {
    "share": "%{z:.3~%}",
    "magnitude": "10^%{z:.2f}",
    "headroom": "%{z:.1f} bits",
}


def _said(value: float, unit: Unit) -> str:
    """Return the hover text of a value, empty for NaN."""
    if np.isfinite(value):
        return _HOVER[unit].replace("%{z", "{0").format(value)
    if np.isnan(value):
        return ""
    return "∞" if value > 0 else "0" if unit == "magnitude" else "−∞"


def fields(statistic: str, parameters: int) -> tuple[str, ...]:
    """Return the fields of cells that the chart draws, has in its caption, or needs to choose rows."""
    left_out = ("zero_max", "subnormal_max") if parameters > ROWS_MAX else ()
    return ("looked", "subnormal", "on_grid", STATISTICS[statistic].stored, *left_out)


@chart(
    title="Gradients by parameter",
    order=60,
    reads="parameters",
    tab="gradients",
    choices=("statistic", "group", "search"),
    sampled=True,
    definitions={
        **{each.word: each.definition for each in STATISTICS.values()},
        "a column": "Shows the worst of its samples: the largest share or norm, the least headroom or "
        "fp16-representable share.",
    },
)
def parameters(window: Window) -> Figure | str:
    """Draw a row for each parameter or part of the model, and a column for one or several sampled updates."""
    of, view = window.source.parameters, window.view
    if of is None:
        return why_no_samples(window)
    # The page shows a choice without options as a text field.
    words = "Find parameters by part of a name; * and ? are wildcards"
    search = choice("search", words, view.search, [])
    if view.search and not of.names:
        words = f"No parameter matches {view.search!r}. Search for part of a name."
        return empty(words, choices=[search])
    nothing = empty(why_no_samples(window), choices=[search])
    if not len(of.cells):
        return nothing
    cells, at = in_window(of.cells, window)
    rows = rows_of(of.names, wide(cells, "looked").sum(0), view.level)
    if not len(cells) or not len(rows):
        return nothing
    statistic = STATISTICS[view.statistic]
    wanted = min(view.columns // COLUMN_PIXELS, CELLS_MAX // min(len(rows), ROWS_MAX))
    columns, x = merged(cells, at, len(of.names), window, wanted)
    kept = _kept(columns, rows)
    left_out, rows = len(rows) - len(kept), rows.only(kept)
    z = statistic.drawn(rows.worst(wide(columns, statistic.stored), least=statistic.least)).T
    height = int(np.clip(len(rows) * ROW_PIXELS, HEIGHT_MIN, HEIGHT_MAX))
    labels = list(map(escaped, rows.names))
    statistics = [(name, each.word) for name, each in STATISTICS.items()]
    return figure(
        [_heatmap(z, labels, x, statistic, int(columns["n"].max()), window)],
        window,
        height=height + 76,
        top=36,
        caption=_caption(of, columns, rows, left_out),
        meta={
            "choices": [
                choice("statistic", "Statistic", view.statistic, statistics),
                *_level_choice(rows),
                search,
            ],
            "opens": rows.opens(of.names),
        },
        yaxis=y_axis(
            type="category",
            autorange="reversed",
            showgrid=False,
            **_ticks(rows.names, labels, height),
        ),
        shapes=_borders(rows.names, height),
        coloraxis=_colours(z, statistic),
    )


def _level_choice(rows: ParameterRows) -> list[dict[str, Any]]:
    if len(rows.offered) < 2:
        return []
    options = [
        (level, f"{LEVELS[level][0]} ({count(number)})") for level, number in rows.offered.items()
    ]
    return [choice("group", "Rows", rows.level, options)]


def _kept(columns: Cells, rows: ParameterRows) -> Ints:
    """The rows that are drawn: if there are too many, those that lose most."""
    if len(rows) <= ROWS_MAX:
        return np.arange(len(rows))
    lost = rows.worst(wide(columns, "zero_max") + wide(columns, "subnormal_max"), least=False)
    most = np.nan_to_num(np.fmax.reduce(lost, axis=0))
    return np.sort(np.argsort(-most, kind="stable")[:ROWS_MAX])


def _heatmap(
    z: Floats,
    labels: Sequence[str],
    x: Ints | Floats,
    statistic: Statistic,
    samples: int,
    window: Window,
) -> Trace:
    """``samples`` is the most samples that share a column."""
    columns = apart(x, window.gaps)
    z = np.where(columns.empty, np.nan, z[:, columns.taken])
    of = f"<br>the worst of up to {plural(samples, 'sample')}" if samples > 1 else ""
    cell_text: Trace = {}
    hover = _HOVER[statistic.unit]
    if np.isinf(z).any():  # other values need no text of their own
        said = [[_said(value, statistic.unit) for value in row] for row in z.tolist()]
        cell_text, hover = {"text": said}, "%{text}"
    words = f"%{{y}}<br>{hovered_x(window)}: {hover} {statistic.word}{of}"
    far = np.nan_to_num(z, nan=np.nan, posinf=FAR, neginf=-FAR)
    return heatmap(columns, list(labels), far, words, window, **cell_text)


def _ticks(names: Sequence[str], labels: Sequence[str], height: int) -> dict[str, Any]:
    """Label all rows if there is room, else the rows at which a block begins, larger blocks first."""
    apart = max(1, -(-len(names) * LABEL_PIXELS // height))
    texts = _alike(names)
    kept = list(range(len(names)))
    # The last part of a name, "weight" for example, would say nothing alone.
    cut = [name for name, text in zip(names, texts, strict=True) if "." in name and "." not in text]
    if apart > 1 or cut:
        rows, blocks = _blocks(names), [block_of(name) for name in names]
        short = dict(
            zip(dict.fromkeys(blocks), _alike([*dict.fromkeys(blocks)], ends=True), strict=True)
        )
        kept, texts = [], [short[block] for block in blocks]
        for row in sorted(rows, key=lambda row: -rows[row]):
            if all(abs(row - other) >= apart for other in kept):
                kept.append(row)
    return {
        "tickvals": [labels[row] for row in kept],
        "ticktext": [escaped(texts[row]) for row in kept],
        "tickfont": {"size": 10},
        "ticks": "",
    }


def _blocks(names: Sequence[str]) -> dict[int, int]:
    """Return the rows at which a block begins, each with its number of rows."""
    blocks = [block_of(name) for name in names]
    first = [row for row in range(len(names)) if row == 0 or blocks[row - 1] != blocks[row]]
    return dict(zip(first, np.diff([*first, len(names)]).tolist(), strict=True))


def _borders(names: Sequence[str], height: int) -> list[dict[str, Any]]:
    """Draw a hairline where a block begins, unless there would be little else to see."""
    first = [row for row in _blocks(names) if row]
    if not first or height / len(first) < LABEL_PIXELS or len(names) < 2 * len(first):
        return []
    return [level(row - 0.5, "hairline", opacity=0.6) for row in first]


def _alike(names: Sequence[str], *, ends: bool = False) -> list[str]:
    """Shorten names. Those of one module lose the same words. If some are equal, a letter of the first word begins all.

    It is the first letter, or the last one if that tells more of them apart, as for netG and netD. With ``ends``, each
    name keeps its last letters instead if these differ.
    """
    lost: Counter[str] = Counter()
    modules = [name.rpartition(".")[0] for name in names]
    for module, name in zip(modules, names, strict=True):
        lost[module] = max(lost[module], name.count(".") - _short(name).count("."))
    texts = [_short(name, lost[module]) for module, name in zip(modules, names, strict=True)]
    if len({*texts}) == len(texts):
        return texts
    first = [name.partition(".")[0] or name for name in names]
    labels = (
        [
            text if text == name else f"{word[letter]}…{text.lstrip('…')}"[:LABEL_LETTERS]
            for text, name, word in zip(texts, names, first, strict=True)
        ]
        for letter in (0, -1)
    )
    kept = [[*map(_end, names)]] if ends else []
    return max([*kept, *labels], key=lambda each: len({*each}))


def _short(name: str, words: int = 0) -> str:
    """Shorten a name to its end that fits beside the plot, in whole words if they fit. Drop ``words`` or more."""
    parts = name.split(".")[words:]
    while len(parts) > 1 and len(".".join(parts)) > LABEL_LETTERS:
        parts.pop(0)
    return _end(".".join(parts))


def _end(name: str) -> str:
    return name if len(name) <= LABEL_LETTERS else f"…{name[1 - LABEL_LETTERS :]}"


def _colours(z: Floats, statistic: Statistic) -> dict[str, Any]:
    """The colour axis, reversed if less is worse."""
    is_share, lower = statistic.unit == "share", statistic.lower_is_worse
    low, high = _limits(z[np.isfinite(z)], statistic)
    ticks = share_ticks(low, high) if is_share else {"nticks": 4, "tickformat": ".3~g"}
    return {
        # A share of 0 has the background's colour; otherwise a map of zeros would look full.
        "colorscale": "role:shares" if is_share and not lower else "role:counts",
        "reversescale": lower,
        "cmin": low,
        "cmax": high,
        "colorbar": colour_bar(statistic.short, **ticks),
    }


def _limits(z: Floats, statistic: Statistic) -> tuple[float, float]:
    """Return round limits around all of ``z``. As ``z`` grows, they stay or move far enough to be noticed."""
    if statistic.unit == "headroom":
        z = np.clip(z, *BITS)
    low, high = (float(z.min()), float(z.max())) if len(z) else (0.0, 1.0)
    if statistic.unit != "share":
        step = 8.0 if statistic.unit == "headroom" else 1.0
        first = step * np.floor(low / step)
        return float(first), float(max(step * np.ceil(high / step), first + step))
    return (
        (1.0 - _round_share(1.0 - low), 1.0)
        if statistic.lower_is_worse
        else (0.0, _round_share(high))
    )


def _round_share(share: float) -> float:
    """Round a share up to 1 %, 2 %, 5 %, 10 %, 20 %, 50 % or 100 %."""
    return next((each / 100 for each in (1, 2, 5, 10, 20, 50) if share <= each / 100), 1.0)


def _caption(of: ParameterSource, columns: Cells, rows: ParameterRows, left_out: int) -> str:
    samples, most = int(columns["n"].sum()), int(columns["n"].max())
    newest = columns[int(columns["last"].argmax())]
    lost, off = _lost(of, newest)
    those = f"{count(int(newest['n']))} samples together" if newest["n"] > 1 else "sample"
    parts = [f"{plural(samples, 'sampled step')}, {plural(len(rows.parameters), 'parameter')}."]
    if rows.merged:
        parts.append(f"Each row shows the worst of a {rows.level}: {plural(len(rows), 'row')}.")
    if lost is not None:
        parts.append(
            f"In the newest {those}, {percent(lost)} of the elements are subnormal or below range"
            + (f"; {plural(off, 'parameter')} not representable in fp16 left out." if off else ".")
        )
    if left_out:
        parts.append(f"Not drawn, because they lose less: {plural(left_out, rows.level)}.")
    if most > 1:
        parts.append(f"Up to {count(most)} samples share a column, which shows the worst.")
    if of.shard is not None:
        parts.append(f"Shows the shard of rank {count(of.shard)}.")
    return " ".join(parts)


def _lost(of: ParameterSource, cell: Cells) -> tuple[float | None, int]:
    """Return the share of elements that lose bits, and the number of parameters off fp16's grid, which are not judged.

    Sampled elements stand for all of their parameter, as in the chart of the gradient lost in fp16. The share is None
    if no element was sampled. If all parameters are off the grid, all of them are judged.
    """
    looked, lost, on = (np.ravel(cell[each]) for each in ("looked", "subnormal", "on_grid"))
    judged = on >= ON_GRID_SHARE * looked
    if not judged[looked > 0].any():
        judged = np.ones(len(looked), bool)
    elements = np.where(judged, elements_of(looked, of.numel, of.looked_at, int(cell["n"])), 0)
    share = lost / np.maximum(looked, 1)
    every = int(elements.sum())
    return float((share * elements).sum()) / every if every else None, int((~judged).sum())
