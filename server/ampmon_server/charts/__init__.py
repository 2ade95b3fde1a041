"""The charts of a run as plain Plotly dicts: a `Source` and a `View` go in, {"data", "layout"} comes out.

The functions are pure: they read no store and serve no request. ``layout.meta`` holds a chart's words: its title, a
caption, definitions and, if there is nothing to draw, the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from ampmon_server.charts.parts.chart import Chart
from ampmon_server.charts.parts.layout import Figure
from ampmon_server.charts.parts.source import (
    ParameterSource,
    ReplaySource,
    ScaleSource,
    Source,
    View,
)


def _declared() -> dict[str, Chart]:
    names = [each.name for each in iter_modules(__path__)]
    found = {name: getattr(import_module(f"{__name__}.{name}"), name, None) for name in names}
    charts = {name: chart for name, chart in found.items() if isinstance(chart, Chart)}
    return dict(sorted(charts.items(), key=lambda named: named[1].order))


FIGURES: Mapping[str, Chart] = _declared()
"""Every chart by the name of its module, which is its name in addresses, from top to bottom."""

RUN_FIGURES = tuple(name for name, chart in FIGURES.items() if not chart.parameter)
"""The charts that need no chosen parameter, from top to bottom."""

__all__ = [
    "FIGURES",
    "RUN_FIGURES",
    "Figure",
    "ParameterSource",
    "ReplaySource",
    "ScaleSource",
    "Source",
    "View",
]
