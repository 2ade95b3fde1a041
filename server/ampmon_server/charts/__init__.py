"""The charts of a run as plain Plotly dicts: a `Source` and a `View` go in, {"data", "layout"} comes out.

The functions are pure: they read no store and serve no request. ``layout.meta`` holds a chart's words: its title, a
caption, definitions and, if there is nothing to draw, the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules

from ampmon_server.charts.parts.roles import resolve
from ampmon_server.charts.parts.source import (
    Chart,
    Figure,
    ParameterSource,
    ReplaySource,
    ScaleSource,
    Source,
    View,
    cut,
)
from ampmon_server.charts.scalars import PANELS_MAX


def _declared() -> dict[str, Chart]:
    modules = {
        each.name: import_module(f"{__name__}.{each.name}") for each in iter_modules(__path__)
    }
    charts = {name: module.CHART for name, module in modules.items() if hasattr(module, "CHART")}
    return dict(sorted(charts.items(), key=lambda named: named[1].order))


CHARTS: Mapping[str, Chart] = _declared()
"""Every chart by the name of its module, which is its name in addresses, from top to bottom."""

FIGURES: Mapping[str, Callable[[Source, View], Figure]] = {
    name: chart.draw for name, chart in CHARTS.items()
}

RUN_FIGURES = tuple(name for name, chart in CHARTS.items() if not chart.parameter)
"""The charts that need no chosen parameter, from top to bottom."""

OWN_AXIS = frozenset(name for name, chart in CHARTS.items() if chart.own_axis)
"""The charts with their own x axis. All others are along the run."""

__all__ = [
    "CHARTS",
    "FIGURES",
    "OWN_AXIS",
    "PANELS_MAX",
    "RUN_FIGURES",
    "Chart",
    "Figure",
    "ParameterSource",
    "ReplaySource",
    "ScaleSource",
    "Source",
    "View",
    "cut",
    "resolve",
]
