"""What other scales and formats would make of a gradient: shares of it against the scale, with their bounds.

The shares leave out what was flushed or overflowed upstream of the weights, and the chart says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampmon.numerics.formats import BF16, FP16, FloatFormat
from ampmon_server.analysis.policy.languages import in_settings_of
from ampmon_server.analysis.whatif import FORMATS, LEVELS, Curve, Gradient, best, curve, room
from ampmon_server.charts.parts.chart import chart
from ampmon_server.charts.parts.layout import (
    FONT,
    HAIRLINE_AXIS,
    Figure,
    choice,
    figure,
    label,
    powers_of_two,
    ticks,
    upright,
    y_axis,
)
from ampmon_server.charts.parts.source import ScaleSource, View
from ampmon_server.charts.parts.traces import Trace, scatter
from ampmon_server.charts.parts.window import Window, typed
from ampmon_server.charts.underflow import height_of
from ampmon_server.model.series import Floats
from ampmon_server.model.words import SPACE, percent, steps, two_to


HEADROOM = 1.0
"""The bits that the limit leaves above the largest value."""

FLOOR = -6.0
"""log10 of the least share on the axis, one in a million. A share of zero is drawn here."""

_SAMPLE = "the newest finite sample"
"""Its scale may be far from the current one: while every step overflows, no new sample is finite."""

_FP16, _BF16 = FP16.name.lower(), BF16.name.lower()

_HATCH = {"shape": "/", "size": 4, "solidity": 0.2}

NAMES = {"fp16": "fp16", "bf16": "bf16", "e4m3": "fp8 E4M3", "e5m2": "fp8 E5M2"}


@dataclass(frozen=True, slots=True)
class LossKind:
    """One way of losing a value, named as in `analysis.whatif.Curve`. ``word`` and, for zero, ``none`` describe it."""

    field: str
    word: str
    none: str
    role: str
    dash: str

    def ends(self, of: Curve) -> tuple[Floats, Floats]:
        """Return the least and the most that is lost at each scale, as shares of all elements."""
        low, high = (getattr(of, f"{self.field}_{end}") for end in ("low", "high"))
        return np.array(low), np.array(high)


LOSSES = (
    LossKind("underflow", "flushed to zero", "nothing flushed to zero", "zero", "solid"),
    LossKind("subnormal", "subnormal", "nothing subnormal", "subnormal", "dash"),
    LossKind("overflow", "overflow", "no overflow", "skip", "dot"),
)


@chart(
    title="What if: another loss scale or format",
    order=100,
    reads="scales",
    tab="whatif",
    choices=("format", "parameter", "whatif_scale"),
    sampled=True,
    definitions={
        "flushed to zero": "Values so small that the format turns them into zero. Values that are zero at any scale "
        "are not counted, as far as the run can tell them apart.",
        "subnormal": "The smaller the value, the fewer bits the format keeps.",
        "overflow": "Values beyond the format's largest number: one is enough to skip the step. Gradients of "
        "activations are larger than those of weights and overflow first, so the real limit lies lower.",
        "band": "From the least to the most that the histogram allows, if rounding moves small values by up to two "
        "powers of two. In tests, 97 % of such ranges held the true share, but fewer for deep convolutions.",
        "measured": "A dot marks the scale of the newest finite sample, where nothing is estimated. The lines are "
        "estimates for other scales, and may miss the dot.",
        "headroom": "Bits between the largest value seen and the format's largest number.",
        "limit": f"The largest power of two that leaves {HEADROOM:.0f} bit of headroom.",
        "recommended": "The scale that the run's recommendation sets.",
    },
)
def whatif(window: Window) -> Figure | str:
    """Draw bands of what is lost at each scale in one format, and mark the scales of `_Marks`."""
    asked, view = window.source.scales, window.view
    if isinstance(asked, str):
        return f"No gradient to try at other scales: {asked}."
    at = _Marks.of(asked, view)
    marked = list(at.drawn())
    shares = curve(asked.gradient, asked.gone, FORMATS[view.format])
    decades = range(int(FLOOR) + 1, 1)
    shown = ticks({FLOOR: percent(0.0), **{decade: percent(10.0**decade) for decade in decades}})
    return figure(
        [trace for loss in LOSSES for trace in _traces(loss, shares, at.measured)],
        window,
        height=344,
        named=[loss.word for loss in LOSSES],
        caption=_caption(asked, view),
        meta={
            "choices": [choice("format", "Format", view.format, list(NAMES.items()))],
            "slider": {"low": LEVELS[0], "high": LEVELS[-1], "value": at.chosen},
            "sentence": _sentence(asked, view, shares, at),
            **_standing(asked, view, at),
            "bases": {"x": 2, "y": 10},
        },
        uirevision="whatif",
        hovermode="closest",
        dragmode=False,
        xaxis=_x_axis(view),
        yaxis=y_axis(range=[FLOOR, 0.9], **shown),
        shapes=[line for line, _ in marked],
        annotations=[label for _, label in marked],
    )


@dataclass(frozen=True, slots=True)
class _Marks:
    """The powers of two to mark: the newest finite sample's, the limit and the recommended one, None if there is none.

    ``chosen`` is the reader's choice, else the recommended scale, else the sample's.
    """

    newest: int
    limit: int | None
    recommended: int | None
    chosen: int
    measured: int | None
    """The scale at which the gradient was measured in the chosen format, None if it was not."""

    @classmethod
    def of(cls, asked: ScaleSource, view: View) -> _Marks:
        newest, into = asked.gradient.level, FORMATS[view.format]
        limit = round(math.log2(best(asked.gradient, asked.gone, HEADROOM, into).scale))
        scale = asked.recommended.setting.get("init_scale", 0.0)
        fits = view.format == _FP16 and view.parameter is None and scale > 0
        advised = round(math.log2(scale)) if fits else None
        chosen = next(each for each in (view.whatif_scale, advised, newest) if each is not None)
        return cls(
            newest,
            limit if limit in LEVELS and view.format != _BF16 else None,
            advised,
            min(max(chosen, LEVELS[0]), LEVELS[-1]),
            newest if view.format == _FP16 else None,
        )

    def drawn(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield a line and a label for each mark. Labels are in rows, so that neighbours do not overlap."""
        at: dict[int, list[str]] = {}
        marks = {
            "newest sample": self.newest,
            "limit": self.limit,
            "recommended": self.recommended,
            "chosen": self.chosen,
        }
        for word, level in marks.items():
            if level is not None and level in LEVELS:
                at.setdefault(level, []).append(word)
        for row, (level, words) in enumerate(at.items()):
            dash = "solid" if level == self.newest else "dash" if "limit" in words else "dot"
            words_at = f"{', '.join(words)}: 2<sup>{level}</sup>"
            yield upright(level, "scale", dash, width=1.5), _label(level, words_at, row)


def _label(level: int, text: str, row: int) -> dict[str, Any]:
    left = level > (LEVELS[0] + LEVELS[-1]) / 2
    across = {"x": level, "xanchor": "right" if left else "left", "xshift": -2 if left else 2}
    down = {"yref": "paper", "y": 1, "yanchor": "top", "yshift": -16 * row}
    return label(text, "ink", **across, **down, bgcolor="role:background")


def _traces(loss: LossKind, shares: Curve, measured: int | None) -> list[Trace]:
    """Draw the most that is lost at other scales as a line, filled down to the least, and the measured share as a dot.

    Joined with the line, the dot would be a hole in it.
    """
    low, high = loss.ends(shares)
    x = np.log2(np.array(shares.scale))
    known = (x == measured) & (low == high)
    there = ~known
    said = [_between(*ends) for ends in zip(low[there].tolist(), high[there].tolist(), strict=True)]
    # The page reads values only at these scales, because a measured share may be between them.
    exact = {"meta": {"exact": True}}
    hidden = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    style = {"color": f"role:{loss.role}", "width": 2, "dash": loss.dash}
    hatch = {"fgcolor": f"role:{loss.role}", "fgopacity": 0.35, **_HATCH}
    fill = {"name": loss.word, "line": style, "fill": "tonexty", "fillpattern": hatch}
    traces = [
        {**_points(loss, x[there], low[there]), **exact, **hidden},
        {**_points(loss, x[there], high[there]), **exact, **fill, **_hover(loss, said)},
    ]
    if known.any():
        said = [percent(each) for each in high[known].tolist()]
        marker = {"symbol": "circle", "size": 9, "color": f"role:{loss.role}"}
        dot: Trace = {"mode": "markers", "name": f"{loss.word}, measured", "marker": marker}
        beside = {"showlegend": False, "cliponaxis": False}
        points = _points(loss, x[known], high[known])
        traces.append({**points, **dot, **beside, **_hover(loss, said, ", measured")})
    return traces


def _points(loss: LossKind, x: Floats, share: Floats) -> Trace:
    heights = height_of(share, FLOOR).astype(np.float32)
    return scatter(typed(x), heights, legendgroup=loss.field)


def _hover(loss: LossKind, said: list[str], how: str = "") -> dict[str, Any]:
    hover = f"at 2<sup>%{{x:d}}</sup><br>{loss.word}: %{{text}}{how}<extra></extra>"
    return {"text": said, "hovertemplate": hover}


def _x_axis(view: View) -> dict[str, Any]:
    return {
        "range": [LEVELS[0], LEVELS[-1]],
        "fixedrange": True,
        **HAIRLINE_AXIS,
        "title": {"text": "scale", "standoff": 4, "font": {"family": FONT}},
        "unifiedhovertitle": {"text": "at 2<sup>%{x:d}</sup>"},
        **powers_of_two(LEVELS[0], LEVELS[-1], at_most=6 if view.narrow else 21),
    }


def _caption(asked: ScaleSource, view: View) -> str:
    whose = "all fp16-representable parameters" if view.parameter is None else view.parameter
    where = steps(asked.gradient.first, asked.gradient.last)
    return (
        f"The newest gradient of {whose}, {where}, moved to other scales in "
        f"{NAMES[view.format]}. {_zeros(asked)}Values flushed or overflowed earlier, in gradients of activations, "
        "are not included."
    )


def _zeros(asked: ScaleSource) -> str:
    if asked.gone is None or not asked.gradient.zeros:
        return ""
    known = _between(asked.gone.low, asked.gone.high)
    return (
        f"{percent(asked.gradient.zeros)} of the values are zero there: fp16 flushed {known} of all values, "
        "the others are zero at any scale. "
    )


def _sentence(asked: ScaleSource, view: View, shares: Curve, at: _Marks) -> str:
    """Compare what the chosen scale loses with the sample's scale, and say if that is of one parameter only."""
    words = _compared(asked, view, shares, at)
    if view.parameter is None:
        return words
    return f"{words} This covers only this parameter; others may overflow."


def _compared(asked: ScaleSource, view: View, shares: Curve, at: _Marks) -> str:
    chosen, now = two_to(at.chosen), two_to(at.newest)
    would = _losses_at(asked.gradient, FORMATS[view.format], shares, at.chosen)
    in_fp16 = shares if view.format == _FP16 else curve(asked.gradient, asked.gone, FP16)
    newest = _losses_at(asked.gradient, FP16, in_fp16, at.newest)
    if view.format != _FP16:
        return f"At {chosen} in {NAMES[view.format]}: {would}. In {_SAMPLE}, at {now} in fp16: {newest}."
    if at.chosen == at.newest:
        return f"At {chosen}, as in {_SAMPLE}: {would}."
    return f"At {chosen}: {would}. In {_SAMPLE}, at {now}: {newest}."


def _losses_at(gradient: Gradient, into: FloatFormat, shares: Curve, level: int) -> str:
    if level not in LEVELS:
        return "beyond the scales shown"
    index = LEVELS.index(level)
    parts = []
    for loss in LOSSES:
        low, high = (float(each[index]) for each in loss.ends(shares))
        parts.append(f"{_between(low, high)} {loss.word}" if high else loss.none)
    left = room(gradient, into, level)
    if math.isfinite(left) and left < 0:
        parts.append(f"the largest value {-left:.1f} bits too large")
    elif math.isfinite(left):
        parts.append(f"{left:.1f} bits of headroom")
    return ", ".join(parts)


def _between(low: float, high: float) -> str:
    """Name the range of a share, as one number if both ends have the same words."""
    if 0 < high < 10**FLOOR:
        return f"less than {percent(10**FLOOR)}"
    least, most = percent(low), percent(high)
    if least == most:
        return most
    if low == 0:
        return f"at most {most}"
    return f"{least.removesuffix(SPACE + '%')} – {most}"


def _standing(asked: ScaleSource, view: View, at: _Marks) -> dict[str, str]:
    """Compare the choice with the run's recommendation, and give the code if it is an alternative.

    A single parameter has neither, because all parameters share one scale.
    """
    advised, code = asked.recommended, ""
    is_asked = view.whatif_scale is not None or at.recommended is not None
    if view.parameter is None and view.format == _BF16:
        code = "with torch.autocast(device_type, dtype=torch.bfloat16):  # needs no scaler"
    elif view.parameter is None and view.format == _FP16 and is_asked and at.chosen != at.newest:
        line = f"scaler = ampmon.GradScaler(init_scale=2.0**{at.chosen})"
        code = in_settings_of(asked.policy, line)
    if not code:
        return {"standing": "", "code": ""}
    same = at.chosen == at.recommended if view.format == _FP16 else "bfloat16" in advised.code
    return {"standing": advised.standing(same=same), "code": "" if same else code}
