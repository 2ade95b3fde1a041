"""A run's charts as plain Plotly dicts. Pure: series and a view in, {"data", "layout"} out; reads and serves nothing.

``layout.meta`` holds the words of a chart: its title, a caption, definitions, and, where nothing can be drawn, why.
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
"""Every chart by the name it has in its address."""

OF_A_RUN = tuple(name for name in FIGURES if name not in {"parameter", "histogram"})
"""The charts that need no parameter to be chosen, from top to bottom."""

APART = frozenset({"activations", "histogram", "whatif"})
"""Charts with an x axis of their own; all others are along the steps."""

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
