"""One parameter at one sample: the number of its elements by magnitude, and what a format holds of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon.numerics.formats import FP16, FloatFormat
from ampmon.numerics.histogram import BINS, EXPONENT_MIN, headroom_bits
from ampmon_server.analysis.whatif import FORMATS
from ampmon_server.charts.exponents import limits
from ampmon_server.charts.parameter import CHOOSE
from ampmon_server.charts.parts.chart import chart, nothing_here
from ampmon_server.charts.parts.layout import (
    Figure,
    figure,
    format_choice,
    label,
    own_axis,
    powers_of_two,
    ticks,
    upright,
    y_axis,
)
from ampmon_server.charts.parts.source import View
from ampmon_server.charts.parts.traces import Trace, bars
from ampmon_server.charts.parts.window import Window, typed
from ampmon_server.charts.underflow import FATES
from ampmon_server.model.series import Floats, ParameterSample
from ampmon_server.model.words import count, magnitude_of, percent, plural, power_of_two, two_to


WORDS = {
    "zero": "zero",
    "below_grid": "below range",
    "subnormal": "subnormal",
    "normal": "normal",
    "not_finite": "overflow",
}
_APART = {"exactly zero": "zero", "inf or NaN": "inf"}
"""Bars without a magnitude, and the labels below them."""

ROLES = {fate.field: fate.role for fate in FATES}


@dataclass(frozen=True, slots=True)
class _Bar:
    """One or more elements, their class in the chosen format, and where their bar stands."""

    at: float
    elements: int
    fate: str
    words: str


@chart(
    title="Elements by magnitude",
    order=80,
    reads="sample",
    tab="gradients",
    choices=("parameter", "format"),
    sampled=True,
    parameter=True,
    definitions={
        "magnitude": "A bar at 2ᵏ counts elements of the scaled gradient from 2ᵏ up to 2ᵏ⁺¹. Doubling the scale "
        "moves all of them one bar to the right.",
        "overflow": "Above its largest number, 65 504 in fp16, a format has only infinity (E4M3 only NaN).",
        "subnormal": "Below this limit, 2⁻¹⁴ in fp16, the smaller the number, the fewer bits a format keeps.",
        "below range": "Below a format's smallest number, 2⁻²⁴ in fp16: half of it and less becomes zero.",
        "zero": "Exactly zero, whether fp16 flushed it or it always was.",
    },
)
def histogram(window: Window) -> Figure | str:
    """Draw the chosen parameter at the newest sample of the view: a bar for each power of two, and one for zeros."""
    sample, view = window.source.sample, window.view
    if view.parameter is None:
        return CHOOSE
    if sample is None:
        before = f"No gradient of a parameter named {view.parameter!r} was sampled."
        return nothing_here(view, "sampled gradient", before)
    into = FORMATS[view.format]
    drawn = _bars(sample, into)
    if not drawn:
        return f"At step {count(sample.step)} none of its elements was sampled."
    low = min(drawn[0].at, FP16.exponent_min_subnormal) - 1.0
    high = max(drawn[-1].at, FP16.exponent_max) + 1.0
    named = zip(limits(into), ("overflow", "subnormal", "below range"), strict=True)
    shown = [(at, words) for at, words in named if low < at < high]
    return figure(
        [_trace(drawn, int(sample.statistics.looked[0]), into)],
        window,
        height=272,
        top=24,
        caption=_caption(sample, drawn, into),
        meta={"choices": [format_choice("limits", view)]},
        bargap=0.15,
        xaxis=_x_axis(low, high, drawn, view),
        yaxis=_y_axis(float(np.log10(max(bar.elements for bar in drawn)))),
        shapes=[{**upright(at, "ink", "dot"), "xref": "x"} for at, _ in shown],
        annotations=[_name(at, words) for at, words in shown],
    )


def _bars(sample: ParameterSample, into: FloatFormat) -> list[_Bar]:
    """The bars that are not empty, from left to right."""
    one = sample.statistics
    counts = enumerate(one.histogram[0].tolist(), EXPONENT_MIN)
    bars = [_Bar(at, held, _fate(at, into), _words(at)) for at, held in counts if held]
    if one.zeros[0]:
        at = min([FP16.exponent_min_subnormal, *(bar.at for bar in bars)]) - 2.0
        bars.insert(0, _Bar(at, int(one.zeros[0]), "zero", "exactly zero"))
    if lost := int(one.inf[0] + one.nan[0]):
        at = max([FP16.exponent_max, *(bar.at for bar in bars)]) + 2.0
        bars.append(_Bar(at, lost, "not_finite", "inf or NaN"))
    return bars


def _fate(exponent: int, into: FloatFormat) -> str:
    if exponent > into.exponent_max:
        return "not_finite"
    if exponent < into.exponent_min_subnormal:
        return "below_grid"
    return "subnormal" if exponent < into.exponent_min_normal else "normal"


def _words(exponent: int) -> str:
    if exponent == EXPONENT_MIN:
        return f"below {two_to(exponent + 1)}"
    if exponent == EXPONENT_MIN + BINS - 1:
        return f"{two_to(exponent)} and above"
    return f"{two_to(exponent)} up to {two_to(exponent + 1)}"


def _trace(drawn: list[_Bar], looked: int, into: FloatFormat) -> Trace:
    said = [
        f"{bar.words}: {plural(bar.elements, 'element')}, {percent(bar.elements / looked)}"
        f"{f'<br>{WORDS[bar.fate]} in {into.name}' if bar.words.startswith(('2', 'b')) else ''}"
        for bar in drawn
    ]
    colours = {"color": [f"role:{ROLES[bar.fate]}" for bar in drawn], "line": {"width": 0}}
    x, y = (np.array([getattr(bar, name) for bar in drawn]) for name in ("at", "elements"))
    return bars(typed(x), y, said, colours)


def _x_axis(low: float, high: float, bars: list[_Bar], view: View) -> dict[str, Any]:
    powers = powers_of_two(low + 1, high - 1)
    apart = {bar.at: _APART[bar.words] for bar in bars if bar.words in _APART}
    room = 5 if view.narrow else 2
    named = {
        at: words
        for at, words in zip(powers["tickvals"], powers["ticktext"], strict=True)
        if all(abs(at - other) >= room for other in apart)
    } | apart
    title = "magnitude of an element, scaled"
    return own_axis(title, range=[low, high], showgrid=False, **ticks(named))


def _y_axis(decades: float) -> dict[str, Any]:
    """Counts on a log scale, so that few elements beside a limit are visible next to many elsewhere."""
    powers = range(0, int(decades) + 1, max(1, -(-int(decades) // 4)))
    named = {
        10**power: f"10<sup>{power}</sup>" if power > 5 else count(10**power) for power in powers
    }
    top = max(decades, 1.0) + 0.1
    return y_axis(type="log", range=[-0.3, top], **ticks(named))


def _name(at: float, words: str) -> dict[str, Any]:
    """Name what is beyond a limit, above the plot and to its left: a phone has no room right of the last limit."""
    place = {"xref": "x", "x": at, "xanchor": "right", "xshift": 2}
    return label(words, "muted", **place, yref="paper", y=1, yanchor="bottom")


def _caption(sample: ParameterSample, bars: list[_Bar], into: FloatFormat) -> str:
    looked = int(sample.statistics.looked[0])
    held = {fate: sum(bar.elements for bar in bars if bar.fate == fate) for fate in WORDS}
    said = [
        f"{percent(held[fate] / looked)} {words}" for fate, words in WORDS.items() if held[fate]
    ]
    whole = looked >= sample.elements
    of = count(looked) if whole else f"a sample of {count(looked)} of its {count(sample.elements)}"
    where = f"Step {count(sample.step)}, scale {power_of_two(sample.scale)}"
    room = _room(sample.statistics.amax, into, whole=whole)
    return f"{where}: of {of} elements {', '.join(said)} in {into.name}.{room}"


def _room(amax: Floats, into: FloatFormat, *, whole: bool) -> str:
    if not np.isfinite(amax[0]) or amax[0] == 0:
        return ""
    bits = f"{float(headroom_bits(amax, into)[0]):.1f} bits of headroom"
    return f" The largest is {magnitude_of(float(amax[0]))}: {'' if whole else 'at most '}{bits}."
