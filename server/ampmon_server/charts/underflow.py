"""How much of the gradient fp16 loses: shares of its elements on a log scale, down to one in ten million.

The normal share is given only as a number: drawn, it would fill nearly all of the chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ampmon.numerics.histogram import SMALL_CLASSES
from ampmon_server.analysis.flushed import Flushed
from ampmon_server.charts.parts.chart import chart, why_no_samples
from ampmon_server.charts.parts.layout import Figure, beside, figure, spread, y_axis
from ampmon_server.charts.parts.layout import ticks as ticks_at
from ampmon_server.charts.parts.samples import GRID_DEFINITION, JudgedGradients, Place, judge, scope
from ampmon_server.charts.parts.traces import Trace, band, broken, dotted, each_once, line
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.aggregates.gradients import SHARES
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, percent, within


ENDS: tuple[Place, ...] = ("first", "last")
EXTREMES: tuple[Place, ...] = ("min", "max")
"""The samples of a column that are drawn."""

DECADES_MAX = 7
"""The log scale goes no lower than one in ten million."""


@dataclass(frozen=True, slots=True)
class ElementClass:
    """One class of elements, as `ampmon.numerics.histogram.Classes` names it."""

    field: str
    word: str
    role: str
    always: bool
    """Draw it even if it has no element."""

    @property
    def place(self) -> int:
        """The place of its share among those of a cell."""
        return SHARES.index(self.field)


HELD = ElementClass("normal", "normal", "normal", True)
LOST = (
    ElementClass("subnormal", "subnormal", "subnormal", True),
    ElementClass("below_grid", "below range", "below-grid", False),
    ElementClass("zero", "zero", "zero", True),
    ElementClass("not_finite", "inf or NaN", "skip", False),
)
FATES = (HELD, *LOST)

_HATCH: Mapping[str, Any] = {
    "fillcolor": "role:zero",
    "fillpattern": {
        "shape": "/",
        "size": 6,
        "solidity": 0.25,
        "fgcolor": "role:zero",
        "bgcolor": "rgba(0,0,0,0)",
    },
}


@chart(
    title="Gradient lost in fp16",
    order=40,
    reads="newest",
    choices=("rank",),
    sampled=True,
    definitions={
        "normal": "Elements that fp16 holds with full precision: 2⁻¹⁴ and above.",
        "subnormal": "From 2⁻²⁴ to below 2⁻¹⁴: the smaller the value, the fewer bits fp16 keeps.",
        "below range": "Not zero, but below 2⁻²⁴, fp16's smallest number: possible only for gradients computed in "
        "fp32.",
        "zero": "Exactly zero, whether fp16 flushed it or it always was (dead units, unused rows of an embedding).",
        "flushed": "Values that fp16 turned into zero, as a share of all elements. They look like any other zero, so "
        "the share is estimated: from how many zeros appeared and disappeared with the scale, and from how the "
        "magnitudes continue below the range of fp16. Hatched between the bounds of the estimate, and drawn only "
        "at the newest scale, to which it applies.",
        "inf or NaN": "Overflowed: one such element skips the step.",
        "standard error": "If only some elements were sampled, a share has a ±, and its line a band of 95 %: they "
        "show how far the share of all elements may be from it, estimated from the differences "
        "between runs of 16 neighbours in the sample.",
        "fp16-representable": GRID_DEFINITION,
    },
)
def underflow(window: Window) -> Figure | str:
    """Draw shares at sampled updates. Lines keep the extremes of each column; the normal share is only in the words."""
    judged = judge(window)
    if judged is None:
        return why_no_samples(window)
    source, narrow, classes = window.source, window.view.narrow, judged.classes()
    drawn = [fate for fate in LOST if fate.always or getattr(classes, fate.field).any()]
    points = {fate: _points(fate, judged) for fate in (HELD, *drawn)}
    floor, top = decades([points[fate].share for fate in drawn])
    held, *lines = [_line(fate, of, judged, floor) for fate, of in points.items()]
    bands = [_band(fate, judged, floor) for fate in drawn if _has_band(fate, judged)]
    gone = source.flushed if judged.side == "on" else None
    if gone is not None and not (gone.plausible and gone.high):
        gone = None  # the data moved the zeros, not the scale, or there are none to draw
    if gone is not None:
        lines += _flushed(gone, judged, floor)
    gone_caption = _flushed_caption(source.flushed, judged) if source.newest else ""
    return figure(
        [{**held, "mode": "none"}, *bands, *lines],
        window,
        height=256,
        stacked=132,
        top=32 if narrow else 8,
        caption=_caption([HELD, *drawn], judged) + gone_caption,
        hovermode="x unified",
        meta={"bases": {"y": 10}},
        yaxis=y_axis(range=[floor, top], **ticks(floor, top)),
        annotations=_line_labels(drawn, judged, gone, (floor, top)),
        showlegend=narrow,
    )


def _line(fate: ElementClass, of: _Points, judged: JudgedGradients, floor: float) -> Trace:
    """Draw each column's first, last, least and greatest share. The newest is held to the end of the window."""
    window = judged.window
    x, share, column = (np.append(each, each[-1]) for each in of)
    x[-1] = window.high
    return broken(x, window.gaps, held=True).line(
        height_of(share, floor),
        window,
        _said(fate, share, judged, column),
        name=fate.word,
        line={"shape": "hv", "width": 1.5, "color": f"role:{fate.role}"},
        **dotted(len(x)),
        showlegend=fate is not HELD,
        hovertemplate="%{text}",
    )


class _Points(NamedTuple):
    """The drawn samples of a class, in order of x, [p]: their x, share and column."""

    x: Ints | Floats
    share: Floats
    column: Ints


def _points(fate: ElementClass, judged: JudgedGradients) -> _Points:
    of = fate.place
    x = [*map(judged.at, ENDS), *(judged.at(most)[:, of] for most in EXTREMES)]
    step = [*map(judged.step, ENDS), *(judged.step(most)[:, of] for most in EXTREMES)]
    share = [judged.of(each)[:, of] for each in ("first_share", "last_share", *EXTREMES)]
    kept, (at, _, shares) = each_once(*(np.stack(each, axis=1) for each in (x, step, share)))
    return _Points(at[kept], shares[kept], np.nonzero(kept)[0])


def _has_band(fate: ElementClass, judged: JudgedGradients) -> bool:
    """Whether shares of a class have an interval, since only some of the elements were sampled."""
    return fate.field in SMALL_CLASSES and judged.sampled


def _said(fate: ElementClass, share: Floats, judged: JudgedGradients, column: Ints) -> list[str]:
    """Return the hover text of each share, with the 95 % interval of its column's samples if there is one."""
    shares = [percent(part) for part in share.tolist()]
    if not _has_band(fate, judged):
        return shares
    low, high = (judged.of(end)[column, fate.place] for end in ("low", "high"))
    return [
        f"{said} ({percent(0.95)}: {percent(least)} – {percent(most)})" if least < most else said
        for said, least, most in zip(shares, low.tolist(), high.tolist(), strict=True)
    ]


def _band(fate: ElementClass, judged: JudgedGradients, floor: float) -> Trace:
    """Draw the 95 % intervals of a column's samples around a line."""
    low, high = (height_of(judged.of(end)[:, fate.place], floor) for end in ("low", "high"))
    name, fill = f"{fate.word}, {percent(0.95)}", f"role:{fate.role}"
    pieces = judged.pieces
    return band(*pieces, low, high, judged.window, name=name, fillcolor=fill, opacity=0.2)


def height_of(share: Floats, floor: float) -> Floats:
    """Return log10 of a share. A share of zero is on the floor."""
    with np.errstate(divide="ignore"):
        heights: Floats = np.maximum(np.log10(share), floor)
    return heights


def decades(shares: Sequence[Floats]) -> tuple[float, float]:
    """Return the floor and the top of the log scale: whole decades around all shares, the floor one further down."""
    seen = np.concatenate(shares)
    seen = seen[seen > 0]
    lowest = np.floor(np.log10(seen.min())) if len(seen) else -3.0
    highest = np.ceil(np.log10(seen.max())) if len(seen) else 0.0
    low = float(np.clip(lowest, -DECADES_MAX, -3))
    return low - 1, float(max(highest, low + 2)) + 0.1


def ticks(floor: float, top: float) -> dict[str, Any]:
    """Return ticks for an axis of log10 of shares: whole decades up to ``top``, and 0 % at the ``floor``."""
    decades = np.arange(floor + 1, np.floor(top) + 1)
    stride = 2 if len(decades) > 4 else 1
    shown = decades[::-1][::stride][::-1].tolist()
    return ticks_at({floor: percent(0.0), **{decade: percent(10.0**decade) for decade in shown}})


def _flushed(gone: Flushed, judged: JudgedGradients, floor: float) -> list[Trace]:
    """Draw the estimate and its bounds along the newest columns of samples, which have the scale of the estimate."""
    scales = np.stack([judged.cells["scale_first"], judged.cells["scale_last"]])
    other = np.flatnonzero((scales != scales[1, -1]).any(0))
    # The newest column is drawn even if some of its samples have an older scale.
    begins = min(int(other[-1]) + 1 if len(other) else 0, len(judged.cells) - 1)
    left, right = (end[begins:] for end in judged.pieces)
    heights = height_of(np.array([gone.low, gone.estimate, gone.high]), floor)
    low, at, high = (np.full(len(left), each) for each in heights)
    said = [f"≈ {_estimate(gone)}"] * len(left)
    dashed = {"color": "role:zero", "width": 1.5, "dash": "dash"}
    bounds = {"name": "flushed, its bounds", "opacity": 0.5, **_HATCH}
    return [
        band(left, right, low, high, judged.window, **bounds),
        line(left, right, at, judged.window, said, name="flushed", line=dashed),
    ]


def _estimate(gone: Flushed) -> str:
    low, at, high = (percent(each) for each in (gone.low, gone.estimate, gone.high))
    return f"{at} ({low} – {high})"


def _flushed_caption(gone: Flushed | None, judged: JudgedGradients) -> str:
    """Say what is known of the flushed share, in a sentence with a leading space."""
    if judged.side == "off":
        return ""
    if gone is None:
        why = "no change of the scale has samples on both sides"
    elif gone.plausible and not gone.high:
        return " fp16 flushed none of the zeros."
    elif gone.plausible:
        return f" fp16 flushed some of the zeros: an estimated {_estimate(gone)} of all elements."
    else:
        why = "their number changed more than fp16 can explain, so the data changed along with the scale"
    return f" How many of the zeros fp16 flushed is not known: {why}."


def _line_labels(
    drawn: list[ElementClass],
    judged: JudgedGradients,
    gone: Flushed | None,
    ends: tuple[float, float],
) -> list[dict[str, Any]]:
    """Label each line at its right end with its name and newest share. Labels move if they would overlap."""
    view = judged.window.view
    if view.narrow:
        return []
    newest = judged.newest.of("last_share")[0].tolist()
    named = [(newest[fate.place], f"{fate.word} ", fate.role) for fate in drawn]
    if gone is not None:
        named.append((gone.estimate, "flushed ≈ ", "zero"))
    floor, top = ends
    named.sort()
    heights = height_of(np.array([share for share, _, _ in named]), floor).tolist()
    return [
        beside(at, words + percent(share), role, view)
        for at, (share, words, role) in zip(
            spread(heights, (top - floor) * 0.11, top), named, strict=True
        )
    ]


def _caption(drawn: list[ElementClass], judged: JudgedGradients) -> str:
    newest = judged.newest
    shares = newest.of("last_share")[0].tolist()
    errors = dict(zip(SMALL_CLASSES, newest.of("error")[0].tolist(), strict=True))
    said = [f"{within(shares[fate.place], errors.get(fate.field))} {fate.word}" for fate in drawn]
    words = f"{', '.join(said)} at step {count(int(newest.of('last')[0]))}. {scope(judged)}"
    most = int(judged.of("samples").max())
    shared = f" Up to {count(most)} samples share a column: the extremes of their shares are drawn."
    sampled = " Estimated from a sample: ± is the standard error."
    return words + (shared if most > 1 else "") + (sampled if any(errors.values()) else "")
