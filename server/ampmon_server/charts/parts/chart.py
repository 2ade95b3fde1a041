"""What a chart's module declares: how it is drawn, what it is drawn from, and where the page shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ampmon_server.charts.parts.layout import Figure
from ampmon_server.charts.parts.source import Source, View


Reads: TypeAlias = Literal[
    "series",
    "newest",
    "ranks",
    "scalars",
    "parameters",
    "parameter",
    "sample",
    "modules",
    "scales",
    "replay",
]
"""What is read into a `Source`: the updates and gradients of the view alone ("series"), or more than that."""

Tab: TypeAlias = Literal["gradients", "activations", "whatif", "system"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart. ``order`` places it among the others of a report, a notebook or a tab, the lowest first.

    The page shows it in a ``tab``, unless it has its own place for it. ``choices`` are the query parameters with which
    the reader can change it. A ``sampled`` chart changes only with a sample, so a growing run redraws it less often.
    ``own_axis``: its x axis is not the run's. ``parameter``: it is drawn only for a chosen parameter.
    """

    draw: Callable[[Source, View], Figure]
    order: int = 1000
    reads: Reads = "series"
    tab: Tab | None = None
    choices: tuple[str, ...] = ()
    sampled: bool = False
    own_axis: bool = False
    parameter: bool = False
