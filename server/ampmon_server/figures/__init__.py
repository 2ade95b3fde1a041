"""A run's charts as plain Plotly dicts. Pure: series and a view in, {"data", "layout"} out; reads and serves nothing.

``layout.meta`` holds the words of a chart: its title, a caption, definitions, and, where nothing can be drawn, why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ampmon_server.figures.activations import activations
from ampmon_server.figures.exponents import exponents
from ampmon_server.figures.histogram import histogram
from ampmon_server.figures.layout import Figure
from ampmon_server.figures.norm import norm
from ampmon_server.figures.parameter import parameter
from ampmon_server.figures.parameters import STATISTICS, parameters
from ampmon_server.figures.ranks import ranks
from ampmon_server.figures.roles import resolve
from ampmon_server.figures.scalars import PANELS_MAX, scalars
from ampmon_server.figures.scale import scale
from ampmon_server.figures.simulated import simulated
from ampmon_server.figures.skips import skips
from ampmon_server.figures.source import (
    ParameterSource,
    ReplaySource,
    ScaleSource,
    Source,
    View,
    cut,
)
from ampmon_server.figures.timing import timing
from ampmon_server.figures.underflow import underflow
from ampmon_server.figures.whatif import whatif


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
