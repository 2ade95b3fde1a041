"""The charts of a run as plain Plotly dicts: a `Source` and a `View` go in, {"data", "layout"} comes out.

The functions are pure: they read no store and serve no request. ``layout.meta`` holds a chart's words: its title, a
caption, definitions and, if there is nothing to draw, the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ampmon_server.charts.activations import activations
from ampmon_server.charts.exponents import exponents
from ampmon_server.charts.histogram import histogram
from ampmon_server.charts.norm import norm
from ampmon_server.charts.parameter import parameter
from ampmon_server.charts.parameters import STATISTICS, parameters
from ampmon_server.charts.parts.layout import Figure
from ampmon_server.charts.parts.roles import resolve
from ampmon_server.charts.parts.source import (
    ParameterSource,
    ReplaySource,
    ScaleSource,
    Source,
    View,
    cut,
)
from ampmon_server.charts.ranks import ranks
from ampmon_server.charts.scalars import PANELS_MAX, scalars
from ampmon_server.charts.scale import scale
from ampmon_server.charts.simulated import simulated
from ampmon_server.charts.skips import skips
from ampmon_server.charts.timing import timing
from ampmon_server.charts.underflow import underflow
from ampmon_server.charts.whatif import whatif


FIGURES: Mapping[str, Callable[[Source, View], Figure]] = {
    "scale": scale,
    "skips": skips,
    "scalars": scalars,
    "underflow": underflow,
    "exponents": exponents,
    "parameters": parameters,
    "parameter": parameter,
    "histogram": histogram,
    "activations": activations,
    "whatif": whatif,
    "simulated": simulated,
    "norm": norm,
    "timing": timing,
    "ranks": ranks,
}
"""Every chart, by the name in its URL."""

OF_A_RUN = tuple(name for name in FIGURES if name not in {"parameter", "histogram"})
"""The charts that need no chosen parameter, from top to bottom."""

APART = frozenset({"activations", "histogram", "whatif"})
"""Charts with an x axis of their own. All others have steps or times along x."""

__all__ = [
    "APART",
    "FIGURES",
    "OF_A_RUN",
    "PANELS_MAX",
    "STATISTICS",
    "Figure",
    "ParameterSource",
    "ReplaySource",
    "ScaleSource",
    "Source",
    "View",
    "cut",
    "resolve",
]
