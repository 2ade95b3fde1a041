"""Shared layout of all charts: the x axis that links them, margins, fonts, colours and standard texts. Draws no data.

Colours are role names: "role:ink". web/roles.json has the colour of each role in each theme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ampmon_server.analysis.whatif import FORMATS
from ampmon_server.charts.parts.source import Axis, View
from ampmon_server.charts.parts.traces import Trace, shades
from ampmon_server.charts.parts.window import Window
from ampmon_server.model.scale_policy import DEAD, ENDLESS
from ampmon_server.model.series import Floats
from ampmon_server.model.words import percent


Figure: TypeAlias = dict[str, Any]

# All charts have the same margins, so a step is at the same place in all of them.
MARGIN_LEFT = 64
MARGIN_RIGHT = 144
MARGIN_NARROW = 24
"""Fits half of a step's number beside a narrow plot. Such a plot has its labels inside."""

STACKED_TOP = 6
"""Pixels above a stacked plot, for half of a mark or of a label at its upper edge."""

AXES: Mapping[Axis, str] = {"step": "step", "time": "local time", "user": "logged step"}
TICKS = 9
DAY_US = 86_400_000_000
HAIRLINE_AXIS: Mapping[str, Any] = {
    "showgrid": False,
    "zeroline": False,
    "showline": True,
    "linecolor": "role:hairline",
    "ticks": "outside",
    "ticklen": 4,
    "tickcolor": "role:hairline",
}
"""The settings of every horizontal axis: a line with ticks below it, and no grid."""
WITHIN: Mapping[str, Any] = {"ticklabeloverflow": "allow"}
"""Lets labels overflow into the margins, so that Plotly does not spend a quarter of each drawing on measuring them."""
BOTTOM = 40
"""Pixels below a plot, for an axis and its title."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
LOOK: Mapping[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": FONT, "size": 12, "color": "role:muted"},
    "separators": ".\u202f",
    "hovermode": "closest",
    "hoverlabel": {
        "bgcolor": "role:surface",
        "bordercolor": "role:hairline",
        "font": {"family": FONT, "size": 12, "color": "role:ink"},
        "align": "left",
    },
    "showlegend": False,
    "legend": {
        "orientation": "h",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "itemclick": False,
        "itemdoubleclick": False,
    },
}
"""The default look of all charts."""


def figure(
    data: Sequence[Trace],
    window: Window,
    *,
    caption: str,
    height: int,
    top: int = 8,
    stacked: int | None = None,
    named: Sequence[str] | None = None,
    meta: Mapping[str, Any] = MappingProxyType({}),
    **layout: Any,
) -> Figure:
    """Build a chart from its traces and ``layout``, which overrides the defaults.

    ``height`` and the ``top`` margin are in pixels. ``stacked`` is the height of the plot in the page's stack, for a
    chart that has a place there. The legend has the traces ``named``. ``meta`` is what else the page needs to know of
    the chart. Its ``bases`` are of the axes along which logarithms are drawn: base 2, or base 10 of shares, where the
    lower end stands for 0.
    """
    view = window.view
    layout["shapes"] = [*shades(window), *layout.get("shapes", ())]
    layout = {"xaxis": x_axis(window), "meta": {"caption": caption, **meta}, **layout}
    if view.zone is not None and layout["xaxis"].get("type") == "date":
        layout["meta"] |= {"zone": view.zone}
    if named is not None:
        top, layout["showlegend"] = _legend_top(named, view), bool(named)
    if view.narrow and "coloraxis" in layout:
        _title_apart(layout)
    bottom = BOTTOM
    if view.stacked and stacked is not None:
        top, bottom = STACKED_TOP, BOTTOM if view.position == "last" else 4
        height = top + (stacked * 3 // 4 if view.narrow else stacked) + bottom
        layout["showlegend"] = False
        if view.position == "stacked":
            layout["xaxis"] |= {"title": None, "showticklabels": False, "ticks": ""}
    # Margins are fixed, so that every plot stays in line with the others.
    margin = {"l": MARGIN_LEFT, "r": _right(view), "t": top, "b": bottom, "autoexpand": False}
    return {
        "data": list(data),
        "layout": {
            "height": height,
            "margin": margin,
            **LOOK,
            # On a phone, dragging scrolls the page, and the page's buttons zoom.
            "dragmode": False if view.narrow else "zoom",
            # While it stays the same, Plotly keeps what the reader has zoomed through each redraw.
            "uirevision": f"{view.x} {view.start} {view.stop}",
            **layout,
        },
    }


def _title_apart(layout: dict[str, Any]) -> None:
    """Draw the x axis's title as an annotation.

    Plotly moves a real title away from a colour bar above the plot, onto the ticks.
    """
    axis = layout["xaxis"]
    place = {"xref": "paper", "x": 0.5, "yref": "paper", "y": 0, "yanchor": "top", "yshift": -22}
    title = {"text": axis["title"]["text"], "showarrow": False, **place}
    layout["xaxis"] = {**axis, "title": None}
    layout["annotations"] = [*layout.get("annotations", ()), title]


def empty(reason: str, **meta: Any) -> Figure:
    """Return a chart with nothing to draw. ``reason`` says why and what to do."""
    return {"data": [], "layout": {"meta": {**meta, "empty": reason}}}


def log2_scale(scales: Floats) -> Floats:
    """Return the height of each scale: dead ones at the floor, infinite ones at 128, NaN and negative ones at NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        heights: Floats = np.clip(np.log2(scales), DEAD, ENDLESS)
    return heights


def x_axis(window: Window) -> dict[str, Any]:
    view = window.view
    zone = None if view.zone is None else zone_name(view.zone)
    along = f"time ({zone})" if view.x == "time" and zone else AXES[view.x]
    axis: dict[str, Any] = {
        **HAIRLINE_AXIS,
        "title": {"text": along, "standoff": 4},
        "spikecolor": "role:muted",
        "spikethickness": 1,
        "spikedash": "dot",
        "nticks": 4 if view.narrow else TICKS,
    }
    if not view.narrow:
        axis |= WITHIN
    if view.x == "time":
        low, high = view.in_plot(window.low), view.in_plot(window.high)
        pad = max((high - low) / 400, 0.5)
        return axis | {
            "type": "date",
            # Plotly slants labels that are close together, and slanted ones would reach below the plot.
            "tickangle": 0,
            "nticks": max(1, min(TICKS, _room(view) // 80)),
            "range": [low - pad, high + pad],
            "unifiedhovertitle": {"text": f"{hovered_x(window)} {zone or ''}".rstrip()},
        }
    # Half a step on each side; more on a long run, so that marks at its ends are not cut.
    pad = max(0.5, (window.high - window.low) / 400)
    return axis | {
        "type": "linear",
        "range": [window.low - pad, window.high + pad],
        "tickformat": ",d",
        "unifiedhovertitle": {"text": hovered_x(window)},
        "minallowed": -1,
        # Ticks between whole steps would mean nothing.
        **({"tick0": 0, "dtick": 1} if window.high - window.low < TICKS else {}),
    }


def hovered_x(window: Window) -> str:
    """The x of a point in Plotly's hover template. In a window of more than a day, a time has its date."""
    x = window.view.x
    if x == "time":
        return "%{x|%Y-%m-%d %X}" if window.high - window.low > DAY_US else "%{x|%X}"
    # An update may be between two of the user's own steps.
    return f"{AXES[x]} %{{x:{',.4~f' if x == 'user' else ',d'}}}"


def _right(view: View) -> int:
    return MARGIN_NARROW if view.narrow else MARGIN_RIGHT


def _room(view: View) -> int:
    """The width of the plot between its margins, in pixels."""
    return view.width - MARGIN_LEFT - _right(view)


def _legend_top(words: Sequence[str], view: View) -> int:
    """Return the pixels above a plot for a legend of ``words``: one row, or on a phone as many as it needs."""
    if not words:
        return 8
    if not view.narrow:
        return 32
    in_a_row = max(1, _room(view) // (44 + 7 * max(map(len, words))))
    return 13 + 19 * -(-len(words) // in_a_row)


def y_axis(**keys: Any) -> dict[str, Any]:
    """Return a y axis of fixed range: dragging zooms only x."""
    return {
        "fixedrange": True,
        "zeroline": False,
        "gridcolor": "role:grid",
        "ticks": "",
        **WITHIN,
        **keys,
    }


def own_axis(title: str, **keys: Any) -> dict[str, Any]:
    """Return an x axis of fixed range for a chart that is not along the run: the page's zoom is along steps."""
    return {
        "title": {"text": title, "standoff": 4},
        "fixedrange": True,
        "zeroline": False,
        "ticks": "",
        **keys,
    }


def log_axis(
    low: float, high: float, say: Callable[[float], str], at_most: int = 5, **keys: Any
) -> dict[str, Any]:
    """Return a y axis around 10^low to 10^high. ``say`` names its ticks, of which there are ``at_most`` or fewer."""
    pad = max(0.08 * (high - low), 0.15)
    low, high = low - pad, high + pad
    named = ticks({at: say(at) for at in _log_ticks(low, high, at_most)})
    return y_axis(type="log", range=[low, high], **named, **keys)


def ticks(words: Mapping[Any, str]) -> dict[str, Any]:
    """Return the ticks of an axis: their words by place."""
    return {"tickvals": list(words), "ticktext": list(words.values())}


def share_ticks(low: float, high: float) -> dict[str, Any]:
    """Return the ticks of a linear axis of shares: Plotly's own format has no space before its %."""
    return ticks({each: percent(each) for each in _round_ticks(low, high, 3)})


def _log_ticks(low: float, high: float, at_most: int) -> list[float]:
    """The ticks from 10^low to 10^high: 1, 2 and 5 of each decade, or fewer if those are too many."""
    found: list[float] = []
    coarser = (((1, 2, 5), 1), ((1, 3), 1), ((1,), 1), ((1,), 2), ((1,), 5), ((1,), 50))
    for digits, stride in coarser:
        decades = range(math.floor(low / stride) * stride, math.ceil(high) + 1, stride)
        every = (
            digit * 10.0**decade for decade in decades for digit in digits if -300 < decade < 300
        )
        found = [each for each in every if low <= math.log10(each) <= high]
        if len(found) <= at_most:
            break
    return found if len(found) >= 2 else _round_ticks(10.0**low, 10.0**high)


def _round_ticks(low: float, high: float, at_least: int = 2) -> list[float]:
    """The multiples of 1, 2 or 5 times a power of ten from ``low`` to ``high``, as few as ``at_least`` allows."""
    size = 10.0 ** math.floor(math.log10(high - low))
    for step in (5 * size, 2 * size, size, size / 2):
        found = [each * step for each in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if len(found) >= at_least:
            break
    return found


def around(heights: Floats, pad: float = 0.25) -> tuple[float, float]:
    """Return the range of an axis of log2 that shows the finite ``heights``, and at least four powers of two."""
    held = heights[np.isfinite(heights)]
    low, high = (float(held.min()), float(held.max())) if len(held) else (0.0, 1.0)
    middle, half = (low + high) / 2, max((high - low) / 2, 2.0)
    return middle - half * 1.15 - pad, middle + half * 1.15 + pad


def zone_name(minutes: int) -> str:
    """Return the name of the time zone ``minutes`` east of UTC: UTC, UTC+2, UTC−3:30."""
    if not minutes:
        return "UTC"
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'+' if minutes > 0 else '−'}{hours}{f':{rest:02}' if rest else ''}"


def beside(y: float, text: str, role: str, view: View, **keys: Any) -> dict[str, Any]:
    """Return a label at height ``y`` in the right margin, or inside the right edge of a narrow plot."""
    place: dict[str, Any] = {"xref": "paper", "x": 1, "yref": "y", "y": y, "align": "left"}
    if view.narrow:
        place |= {"xanchor": "right", "yshift": 10, "bgcolor": "role:background", "opacity": 0.85}
    else:
        place |= {"xanchor": "left", "xshift": 6}
    return label(text, role, **place | keys)


def spread(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Move labels at ascending heights apart, by at least ``gap``. None is above ``top``."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap if moved else -math.inf))
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], top)
        top = moved[place] - gap
    return moved


def label(text: str, role: str, **place: Any) -> dict[str, Any]:
    """Return an annotation without an arrow. ``text`` is Plotly's HTML."""
    font = {"size": 11, "color": f"role:{role}"}
    return {"text": text, "showarrow": False, "font": font, **place}


def level(y: float, role: str, *, dash: str = "solid", **keys: Any) -> dict[str, Any]:
    """Return a horizontal line across the plot at height ``y``."""
    line = {"color": f"role:{role}", "width": 1, "dash": dash}
    across = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": y, "y1": y}
    return {"type": "line", **across, "line": line, **keys}


def upright(x: float, role: str, dash: str, width: float = 1) -> dict[str, Any]:
    """Return a vertical line across the plot at ``x``."""
    line = {"color": f"role:{role}", "width": width, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def escaped(text: str) -> str:
    """Escape a user's text for Plotly, which interprets some HTML."""
    return html.escape(text, quote=False)


def powers_of_two(low: float, high: float, at_most: int = 7) -> dict[str, Any]:
    """Return ticks for an axis of log2: at most ``at_most`` whole exponents, labelled 2ᵏ."""
    first, last = math.ceil(low), math.floor(high)
    stride = 1
    while (last - first) // stride + 1 > at_most:
        stride *= 2
    exponents = np.arange(first + (-first) % stride, last + 1, stride)
    return ticks({exponent: f"2<sup>{exponent}</sup>" for exponent in exponents.tolist()})


def scale_axis(low: float, high: float, **keys: Any) -> dict[str, Any]:
    """Return the y axis of `log2_scale` from ``low`` to ``high``, where nothing is above infinity."""
    at = powers_of_two(low, min(high, ENDLESS))
    if at["tickvals"][-1:] == [ENDLESS]:
        at["ticktext"][-1] = "∞"
    return y_axis(range=[low, high], **at, **keys)


def choice(
    name: str, label: str, chosen: str, options: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return a choice beside a chart: a query parameter, and its values with their words."""
    return {"name": name, "label": label, "chosen": chosen, "options": list(map(list, options))}


def format_choice(what: str, view: View) -> dict[str, Any]:
    """Return the choice of the number format of which ``what`` is drawn."""
    formats = [(name, f"{what} of {of.name}") for name, of in FORMATS.items()]
    return choice("format", f"Number format of the {what}", view.format, formats)


def colour_bar(title: str, **keys: Any) -> dict[str, Any]:
    """Return a colour bar above the right end of a plot."""
    place = {"x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom", "ypad": 0}
    size = {"lenmode": "pixels", "len": 200, "thickness": 8, "outlinewidth": 0}
    ticks = {"ticklen": 2, "tickangle": 0}
    named = {"text": f"{title} ", "side": "right", "font": {"size": 12}}
    return {"orientation": "h", **place, **size, **ticks, "title": named, **keys}


def panel_label(name: str, top: float, role: str = "muted", **keys: Any) -> dict[str, Any]:
    """Label a panel at its upper left corner. ``name`` is Plotly's HTML, and ``top`` is a share of the height."""
    corner = {"xref": "paper", "yref": "paper", "x": 0, "y": top, "xanchor": "left"}
    return label(f"<b>{name}</b>", role, **{**corner, "yanchor": "top", **keys})
