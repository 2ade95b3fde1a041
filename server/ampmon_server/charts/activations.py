"""Activations by module: what fp16 makes of their gradients, and the headroom of both, at the newest sample of a view.

There is one row per module, in the order of the forward pass, so a reader sees where in the network gradients are
flushed. Bars leave out normal elements, which would fill them and hide the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon.numerics import sampling_error
from ampmon.numerics.histogram import SMALL_CLASSES, Classes, headroom_bits
from ampmon_server.charts.parts.chart import chart, nothing_here
from ampmon_server.charts.parts.layout import (
    Figure,
    escaped,
    figure,
    own_axis,
    ticks,
    y_axis,
)
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, bars, markers
from ampmon_server.charts.parts.window import Window, typed
from ampmon_server.charts.underflow import FATES, ElementClass
from ampmon_server.model.names import shortened
from ampmon_server.model.series import Floats, Ints, ModuleSample
from ampmon_server.model.words import count, magnitude_of, percent, plural, power_of_two, within


ROWS_MAX = 48
"""At most this many modules are drawn, those that lose most."""

_ROW_PIXELS = 18
_BOTTOM = 40
_NAME_CHARACTERS = (32, 16)
"""Characters of a module's name beside its row, on a wide and on a narrow plot."""
_CHARACTER_PIXELS = 6.6

_OFF = "Activations are not measured in this run. To see where in the network gradients are flushed, write "
_LINE = "GradScaler(model=model, monitor=ampmon.Config(activations=100))"


@chart(
    title="Activations by module",
    order=90,
    reads="modules",
    tab="activations",
    sampled=True,
    definitions={
        "activation gradient": "The gradient of a module's fp16 output, still multiplied by the loss scale. It is "
        "computed in fp16, so it underflows and overflows before the weights' gradients show "
        "it.",
        "subnormal": "From 2⁻²⁴ to below 2⁻¹⁴: the smaller the value, the fewer bits fp16 keeps.",
        "zero": "Exactly zero, whether fp16 flushed it or it always was, for example behind a ReLU or a dropout, or "
        "where a class does not affect the loss.",
        "headroom forward": "log2(65504 / the largest magnitude of the module's output): bits left before it "
        "overflows. The loss scale does not affect it.",
        "headroom back": "log2(65504 / the largest magnitude of the output's gradient). Each doubling of the loss "
        "scale costs one bit.",
        "a click": "Click a module to find its parameters in the heatmap and in the table.",
        "order": "Modules are listed in the order in which the forward pass finishes them; the backward pass runs in "
        "reverse.",
    },
)
def activations(window: Window) -> Figure | str:
    """Draw the elements of each module's gradients that are not normal, by class, and the headroom forward and back."""
    view, sample = window.view, window.source.modules
    if window.source.disabled:
        return "This scaler is disabled: there are no scaled gradients to show."
    if sample is None:
        return nothing_here(view, "sampled activation", f"{_OFF}{_LINE}.")
    rows = _drawn(sample)
    if not len(rows):
        return _nothing_in_fp16(sample)
    classes = sample.statistics.classes()
    drawn = [fate for fate in FATES[1:] if fate.always or getattr(classes, fate.field).any()]
    heights = -np.arange(len(rows), dtype=np.float64)
    names = [shortened(sample.names[row], _NAME_CHARACTERS[view.narrow]) for row in rows.tolist()]
    traces = [*_bars(sample, rows, heights, drawn), *_headrooms(sample, rows, heights)]
    top = 16 + 20 * len(traces) if view.narrow else 48
    left = round(24 + _CHARACTER_PIXELS * max(map(len, names)))
    name_at = ticks(dict(zip(heights.tolist(), map(escaped, names), strict=True)))
    font = {"size": 11, "color": "role:ink"}
    across = {"share of the gradient's elements": "lost", "headroom, bits": "bits left"}
    grid = {"gridcolor": "role:grid", "anchor": "y"}
    lost, bits = [short if view.narrow else long for long, short in across.items()]
    return figure(
        traces,
        window,
        height=top + _BOTTOM + _ROW_PIXELS * len(rows),
        margin={"l": left, "r": 16, "t": top, "b": _BOTTOM, "autoexpand": False},
        caption=_caption(sample, rows),
        meta={"opens": [("search", f"{sample.names[row]}.*") for row in rows.tolist()]},
        barmode="stack",
        bargap=0.35,
        showlegend=True,
        legend=_legend(view),
        xaxis=own_axis(lost, domain=[0, 0.52], **grid, **_percent_ticks(_lost(sample)[rows])),
        xaxis2=own_axis(bits, domain=[0.62, 1], **grid, **_bits_ticks(sample, rows)),
        yaxis=y_axis(
            range=[float(heights[-1]) - 0.6, 0.6],
            **name_at,
            showgrid=False,
            ticklabelstandoff=6,
            tickfont=font,
        ),
    )


def _legend(view: View) -> dict[str, Any]:
    return {
        "orientation": "h",
        "xref": "container" if view.narrow else "paper",
        "x": 0,
        "y": 1,
        "yanchor": "bottom",
        "traceorder": "normal",
        "itemclick": False,
        "itemdoubleclick": False,
    }


def _there(sample: ModuleSample) -> npt.NDArray[np.int64]:
    """The modules that have fp16 gradients or overflowed forward."""
    return np.flatnonzero((sample.elements > 0) | ~np.isfinite(sample.forward))


def _drawn(sample: ModuleSample) -> npt.NDArray[np.int64]:
    """The modules to draw, in their order. If there are too many, those that lose most."""
    there = _there(sample)
    if len(there) <= ROWS_MAX:
        return there
    worst = np.where(np.isfinite(sample.forward), _lost(sample), np.inf)[there]
    return np.sort(there[np.argsort(-worst, kind="stable")[:ROWS_MAX]])


def _lost(sample: ModuleSample) -> Floats:
    classes = sample.statistics.classes()
    return _share(classes.total - classes.normal, classes)


def _share(part: Ints, classes: Classes) -> Floats:
    return np.asarray(part / np.maximum(classes.total, 1), np.float64)


def _bars(
    sample: ModuleSample, rows: Ints, heights: Floats, drawn: list[ElementClass]
) -> list[Trace]:
    classes = sample.statistics.classes()
    said = [_said(sample, classes, drawn, row) for row in rows.tolist()]
    traces = []
    for fate in drawn:
        share = typed(100 * _share(getattr(classes, fate.field), classes)[rows])
        marker = {"color": f"role:{fate.role}", "line": {"width": 0}}
        traces.append(bars(share, heights, said, marker, name=fate.word, orientation="h"))
    return traces


def _said(sample: ModuleSample, classes: Classes, drawn: list[ElementClass], row: int) -> str:
    lines = [f"<b>{escaped(sample.names[row])}</b> {escaped(sample.kinds[row])}"]
    looked, elements = classes.total[row], sample.elements[row]
    if looked:
        for fate in drawn:
            held = getattr(classes, fate.field)
            error = _standard_error(sample, held, fate, row)
            lines.append(f"{within(float(held[row] / looked), error)} {fate.word}")
        part = f"{count(int(looked))} of " if looked < elements else ""
        lines.append(f"{part}{count(int(elements))} elements")
    return "<br>".join(lines)


def _standard_error(sample: ModuleSample, counts: Ints, fate: ElementClass, row: int) -> float:
    """The error of a class's share in one module. ``counts`` [modules] are of the class. 0 if all was sampled."""
    looked, elements = sample.statistics.looked[row], sample.elements[row]
    squares = np.zeros_like(counts)  # unknown for the other classes
    if fate.field in SMALL_CLASSES:
        squares = sample.statistics.run_squares[:, SMALL_CLASSES.index(fate.field)]
    variance = sampling_error.share_variance(counts[row], squares[row], looked, elements)
    share = np.asarray(counts[row] / looked)
    return float(
        sampling_error.standard_error(share, variance, sampling_error.grain(looked, elements))
    )


def _headrooms(sample: ModuleSample, rows: Ints, heights: Floats) -> list[Trace]:
    """Mark the headroom of each module's output and of its gradient. A cross marks an overflow."""
    known = sample.statistics.looked > 0
    lost = (sample.statistics.inf + sample.statistics.nan) > 0
    back = np.where(lost, np.inf, np.where(known, sample.statistics.amax, 1.0))
    traces = []
    for name, symbol, cross, magnitude, there in (
        ("forward", "circle", "x", sample.forward, sample.elements > 0),
        ("back", "diamond-open", "x-open", back, known),
    ):
        over = ~np.isfinite(magnitude)
        for word, mark, role, chosen in (
            (f"headroom {name}", symbol, "ink", there & ~over & (magnitude > 0)),
            (f"overflow {name}", cross, "skip", over),
        ):
            shown = np.flatnonzero(chosen[rows])
            of = rows[shown]
            # An overflow is drawn at a headroom of 0.
            bits = np.where(over[of], 0.0, headroom_bits(magnitude[of]))
            said = [
                f"<b>{escaped(sample.names[row])}</b><br>{word}: {_bits_left(left, magnitude[row])}"
                for row, left in zip(of.tolist(), bits.tolist(), strict=True)
            ]
            marker = {"symbol": mark, "size": 8, "color": f"role:{role}"}
            if len(shown):
                traces.append(markers(word, typed(bits), heights[shown], said, marker, xaxis="x2"))
    return traces


def _bits_left(bits: float, magnitude: float) -> str:
    if not np.isfinite(magnitude):
        return "inf or NaN"
    return f"{bits:.1f} bits, largest {magnitude_of(magnitude)}"


def _percent_ticks(shares: Floats) -> dict[str, Any]:
    """Three ticks from 0 to the least round percentage above all shares."""
    most = 100 * float(shares.max(initial=0.0))
    top = next(round_ for round_ in (1, 2, 5, 10, 20, 50, 100) if most <= round_ or round_ == 100)
    return {
        "range": [0, top],
        **ticks({at: percent(at / 100) for at in (0.0, top / 2, float(top))}),
    }


def _bits_ticks(sample: ModuleSample, rows: Ints) -> dict[str, Any]:
    """From no headroom, or less if fp32 held more than fp16 could, to the most there is."""
    magnitudes = np.concatenate([sample.forward[rows], sample.statistics.amax[rows]])
    bits = headroom_bits(magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)])
    least, most = float(bits.min(initial=0.0)), float(bits.max(initial=8.0))
    wide = (most - least) / 4
    stride = next(stride for stride in (4, 8, 16, 32, 64) if wide <= stride or stride == 64)
    return {"range": [least - 1.0, most + 1.5], "dtick": stride, "tick0": 0}


def _caption(sample: ModuleSample, rows: Ints) -> str:
    classes = sample.statistics.classes()
    looked = int(classes.total.sum())
    parts = [f"Step {count(sample.step)}, scale {power_of_two(sample.scale)}."]
    if looked:
        # Sampled elements stand for all of a module's elements.
        of = np.where(classes.total > 0, sample.elements, 0)
        zero, subnormal = (
            float((_share(part, classes) * of).sum() / of.sum())
            for part in (classes.zero, classes.subnormal)
        )
        modules = plural(int((sample.elements > 0).sum()), "module")
        parts.append(
            f"In the fp16 output gradients of {modules}, {percent(zero)} of the elements are zero and "
            f"{percent(subnormal)} subnormal{_worst(sample)}."
        )
    parts.append(_overflow(sample))
    if len(rows) < len(_there(sample)):
        parts.append(f"The {ROWS_MAX} modules that lose most are drawn.")
    if sample.left_out:
        parts.append(f"{plural(len(sample.left_out), 'compiled module')} not measured.")
    if looked < int(sample.elements.sum()):
        parts.append("The shares are those of a sample.")
    return " ".join(filter(None, parts))


def _worst(sample: ModuleSample) -> str:
    """Name the module with the largest share of elements too small for fp16."""
    classes = sample.statistics.classes()
    small = _share(classes.zero + classes.below_grid + classes.subnormal, classes)
    row = int(small.argmax())
    if not small[row]:
        return ""
    return f", most in {sample.names[row]} ({percent(float(small[row]))} in total)"


def _overflow(sample: ModuleSample) -> str:
    forward = np.flatnonzero(~np.isfinite(sample.forward))
    if len(forward):
        return f"Overflow in the forward pass, first in {sample.names[forward[0]]}."
    back = np.flatnonzero(sample.statistics.inf + sample.statistics.nan)
    if len(back):
        return f"Overflow in the backward pass, first at {sample.names[back[-1]]}."
    return ""


def _nothing_in_fp16(sample: ModuleSample) -> str:
    left_out = " Compiled modules are not measured." if sample.left_out else ""
    return (
        f"At step {count(sample.step)}, none of {plural(len(sample), 'module')} had an output gradient in fp16: did "
        f"they run under autocast to fp16?{left_out}"
    )
