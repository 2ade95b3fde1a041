"""The values that the user logged: one panel per name above one x axis, with the true extremes of each pixel column."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ampmon_server.charts.parts.chart import chart, nothing_here
from ampmon_server.charts.parts.layout import (
    Figure,
    choice,
    empty,
    escaped,
    figure,
    panel_label,
    x_axis,
    y_axis,
)
from ampmon_server.charts.parts.source import Source, View
from ampmon_server.charts.parts.traces import CROSS, Trace, broken, each_once, markers
from ampmon_server.charts.parts.window import Gaps, Window, axis_of, ends, in_view, typed
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import LAYOUT, mean, merge, not_finite
from ampmon_server.model.names import shortened
from ampmon_server.model.series import Floats, Ints
from ampmon_server.model.words import count, digits_of, plural, steps


PANELS_MAX = 4
"""At most this many names are drawn, unless the reader chooses one."""

LETTER_PIXELS = 9
PANEL_PIXELS = 112
LONE_PIXELS = 208
"""The height of a panel, and of a single one."""

_GAP = 0.12
"""The gap to the panel below, as a share of a panel's height."""

_POINTS = {
    "value_first": ("first", "time_first"),
    "value_min": ("value_min_step", "value_min_time"),
    "value_max": ("value_max_step", "value_max_time"),
    "value_last": ("last", "time_last"),
}
"""The values of a column that are drawn, and the fields of their step and their time."""


@chart(
    title="Logged values",
    order=30,
    reads="scalars",
    choices=("name", "y"),
    definitions={
        "value": "A value passed to ampmon.log, without smoothing or thinning. If several fall into one column of "
        "pixels, the first, last, smallest and largest are drawn.",
    },
)
def scalars(window: Window) -> Figure | str:
    """Draw at most four points per pixel column of each name, with all its extremes. NaN and infinities are marked."""
    source, view = window.source, window.view
    if not source.scalars:
        words = 'Nothing was logged. Call ampmon.log({"loss": loss, "lr": lr}).'
        return empty(words, absent=view.stacked)
    x_of = {name: axis_of(source, name, view) for name in source.scalars}
    drawn = {name: in_view(cells, x_of[name], view) for name, cells in source.scalars.items()}
    if not any(len(cells) for cells in drawn.values()):
        return nothing_here(view, "value", "No value.")
    # Charts of a run show the same stretch of x, that of its updates.
    shared = window
    if not len(window.updates):
        low, high = ends(list(drawn.values()), window.x, view)
        shared = replace(window, low=low, high=high)
    traces: list[Trace] = []
    axes: dict[str, Any] = {}
    labels = []
    for place, (name, cells) in enumerate(drawn.items()):
        number, top = str(place + 1) if place else "", 1 - place / len(drawn)
        of = replace(shared, x=x_of[name])
        columns = columns_of(cells, of)
        traces += _panel(name, columns, f"y{number}", of, shared.gaps)
        axes[f"yaxis{number}"] = _axis(columns, place, len(drawn), view)
        labels.append(panel_label(escaped(shortened(name, view.width // LETTER_PIXELS)), top))
    return figure(
        traces,
        shared,
        height=48 + max(PANEL_PIXELS * len(drawn), LONE_PIXELS),
        stacked=92,
        caption=_caption(drawn, source, view),
        meta={**_title(source, view), "choices": _choices(source, view)},
        xaxis={**x_axis(shared), "anchor": f"y{number}"},
        annotations=[] if view.stacked else labels,
        **axes,
    )


def columns_of(cells: Cells, window: Window) -> Cells:
    """Merge cells into one for each pixel column that has a value."""
    return window.columns(cells, window.view.columns, LAYOUT)[0]


def _panel(name: str, cells: Cells, axis: str, window: Window, gaps: Gaps) -> list[Trace]:
    x, step, value = points_of(cells, window)
    points = broken(x, gaps)
    line = points.line(
        value,
        window,
        name=escaped(name),
        mode="lines" if len(x) > 1 else "markers",
        line={"color": "role:accent", "width": 1.5},
        customdata=typed(step[points.taken]),
        hovertemplate="%{y:.6g}, step %{customdata:,d}<extra></extra>",
        yaxis=axis,
    )
    return [line, *_marks(name, cells, axis, window)]


def _marks(name: str, cells: Cells, axis: str, window: Window) -> list[Trace]:
    """Draw a cross at the top of each column that has a value that is not finite."""
    lost = cells[not_finite(cells) > 0]
    if not len(lost):
        return []
    finite = cells["value_max"][np.isfinite(cells["value_max"])]
    first, last = (
        window.x.steps(lost[end], lost[f"time_{end}"]).tolist() for end in ("first", "last")
    )
    top = float(finite.max()) if len(finite) else 0.0
    said = [
        f"{_lost(cell)} in {steps(*ends)}" for cell, *ends in zip(lost, first, last, strict=True)
    ]
    x, named = window.plot(window.x.at(lost, "first")), f"{escaped(name)}, not finite"
    return [markers(named, x, [top] * len(lost), said, CROSS, yaxis=axis)]


def points_of(cells: Cells, window: Window) -> tuple[Ints | Floats, Ints, Floats]:
    """Return x, step and value of the drawn points, in order of x, [p]. A value that is not finite becomes NaN."""
    value = np.stack([cells[name] for name in _POINTS], axis=1)
    step, time = (
        np.stack([cells[fields[place]] for fields in _POINTS.values()], axis=1) for place in (0, 1)
    )
    x, shown = window.x.of(step, time), window.x.steps(step, time)
    kept, (x, step, shown, value) = each_once(x, step, shown, value)
    value = np.where(np.isfinite(value), value, np.nan)
    return x[kept], shown[kept], value[kept]


def _axis(cells: Cells, place: int, panels: int, view: View) -> dict[str, Any]:
    height = 1 / panels
    top = 1 - place * height
    gap = _GAP * height
    axis = y_axis(domain=[max(top - height + gap, 0.0), top - gap], nticks=4, anchor="x")
    return axis | reaching(np.concatenate([cells[name] for name in _POINTS]), view)


def reaching(values: Floats, view: View) -> dict[str, Any]:
    """Return the keys of an axis that shows all finite ``values`` [n]; a log axis shows those above 0."""
    held = values[np.isfinite(values)]
    # Without a finite value, Plotly would label an axis around 0.
    axis: dict[str, Any] = {} if len(held) else {"showticklabels": False}
    if view.y == "log" and (held > 0).any():
        axis["type"] = "log"
        held = np.log10(held[held > 0])
    if len(held):
        least, most = float(held.min()), float(held.max())
        pad = (most - least) * 0.08 or abs(most) * 0.08 or 1.0
        # Where a float cannot hold the padded ends, Plotly chooses the range.
        if math.isfinite(least - pad) and math.isfinite(most + pad):
            axis["range"] = [least - pad, most + pad]
    return axis


def _lost(cell: Cells) -> str:
    words = (("nan", "NaN"), ("inf", "inf"), ("minus_inf", "−inf"))
    return ", ".join(f"{count(int(cell[name]))} {word}" for name, word in words if cell[name])


def _title(source: Source, view: View) -> dict[str, str]:
    """In the stack the title is the drawn name, unless the choice of names beside it shows the name."""
    if not view.stacked:
        return {}
    return {"title": shortened(source.logged[0], 32) if len(source.logged) == 1 else "Logged"}


def _choices(source: Source, view: View) -> list[dict[str, Any]]:
    """The choice of axes, and of names if there are more than are drawn at once."""
    how = how_far(view)
    at_once = 1 if view.stacked else PANELS_MAX
    if len(source.logged) <= at_once:
        return [how]
    chosen = next(iter(source.scalars)) if len(source.scalars) == 1 else ""
    options = [(name, name) for name in source.logged]
    if at_once > 1:
        options.insert(0, ("", f"{PANELS_MAX} of {count(len(source.logged))} names"))
    return [choice("name", "Logged values shown", chosen, options), how]


def how_far(view: View) -> dict[str, Any]:
    """Return the choice between linear and log axes."""
    axes = [("linear", "linear axes"), ("log", "log axes")]
    return choice("y", "Value axes", view.y, axes)


def _caption(drawn: Mapping[str, Cells], source: Source, view: View) -> str:
    said = []
    for name, cells in drawn.items():
        if not len(cells):
            said.append(f"{name}: no values in view.")
            continue
        cell = merge(cells, np.zeros(1, np.int64))
        lost = int(not_finite(cell)[0])
        values = plural(int(cell["n"][0]), "value")
        if lost == cell["n"][0]:
            said.append(f"{name}: {values}, none of them finite ({_lost(cell[0])}).")
            continue
        low, high = cell["value_min"][0], cell["value_max"][0]
        to = f" to {digits_of(high)}, on average {digits_of(mean(cell)[0])}" if high > low else ""
        odd = f"; {_lost(cell[0])}" if lost else ""
        said.append(f"{name}: {values}, {digits_of(low)}{to}{odd}.")
        if view.y == "log" and low <= 0:
            said.append("Its log axis shows only values above 0.")
    others = [name for name in drawn if name in source.others and view.x != "time"]
    if others:
        said.append(f"Placed by time, because logged with another scaler: {', '.join(others)}.")
    left = len(source.logged) - len(drawn)
    if left > 0:
        said.append(f"{plural(left, 'name')} not drawn.")
    return " ".join(said)
