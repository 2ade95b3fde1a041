"""What a figure is drawn from and how it is looked at. Owns the x axis and the cutting to a view; knows no chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ampmon_server.analysis.policy import Recommended, Simulation
from ampmon_server.analysis.whatif import Flushed, Gradient
from ampmon_server.model.aggregates.merging import Cells, Layout, starts_of
from ampmon_server.model.aggregates.updates import LAYOUT
from ampmon_server.model.case import ScalePolicy
from ampmon_server.model.column_width import aligned_span
from ampmon_server.model.series import (
    Floats,
    Ints,
    ModuleSample,
    ParameterSample,
    RankRows,
    Resume,
    UserSteps,
)


WIDTH_MAX = 1000
"""However wide the screen, at most this many pixel columns are drawn."""

ROWS_PER_COLUMN = 4
"""Where there are fewer updates than this for each column, a source gives them as they are, if they are held."""

Axis: TypeAlias = Literal["step", "time", "user"]
Position: TypeAlias = Literal["alone", "stacked", "last"]
Number = TypeVar("Number", float, npt.NDArray[Any])
Place: TypeAlias = Literal["first", "last", "scale_min", "scale_max", "skip", "move"]

PLACES: Mapping[Place, tuple[str, str]] = {
    "first": ("first", "time_first"),
    "last": ("last", "time_last"),
    "scale_min": ("scale_min_step", "scale_min_time"),
    "scale_max": ("scale_max_step", "scale_max_time"),
    "skip": ("skip_last", "skip_time"),
    "move": ("move_last", "move_time"),
}
"""Where in a cell something is: the fields that have its step and its time."""


@dataclass(frozen=True, slots=True)
class View:
    """Which stretch is looked at: ``start`` <= x < ``stop``, in steps, in us since the epoch where x is time, or in
    the user's own steps where it is those.

    None is the run's own end. ``width`` is the plot's width in pixels. ``format`` is the number format whose window is
    drawn over exponents, and ``y`` what the axis of logged values is: charts that have neither look at neither. Times
    are written as a clock ``zone`` minutes east of UTC has them.

    ``position`` is whether a chart stands alone, or in the page's stack: lower, without legend, and with an x axis only
    where it is the ``last``. Logged values of several runs are medians of ``smooth`` columns: 0 is
    every value, None what is usual of so many runs.
    """

    start: int | None = None
    stop: int | None = None
    width: int = WIDTH_MAX
    x: Axis = "step"
    format: Literal["fp16", "bf16", "e4m3", "e5m2"] = "fp16"
    y: Literal["linear", "log"] = "linear"
    zone: int = 0
    position: Position = "alone"
    smooth: int | None = None

    @property
    def columns(self) -> int:
        return min(max(self.width, 100), WIDTH_MAX)

    @property
    def narrow(self) -> bool:
        """A phone's width: no room for labels beside the plot."""
        return self.width < 480

    @property
    def stacked(self) -> bool:
        return self.position != "alone"

    @property
    def whole(self) -> bool:
        return self.start is None and self.stop is None

    def in_plot(self, x: Number) -> Number:
        """x as Plotly has it: steps, or ms since the epoch of the zone's own clock, which Plotly takes for UTC."""
        return x / 1000 + 60_000 * self.zone if self.x == "time" else x


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """Cells of a view (`ampmon_server.model.aggregates.parameters`), of parameters by their names, and what to draw.

    ``shard`` is the rank whose shard they are of, where gradients are sharded. They are those that a ``search`` found,
    and one of them may be ``chosen``, of which ``sample`` is the newest in the view. ``level`` is how finely they
    are split; None is as finely as there is room. Of larger ones than ``looked_at`` so many elements are looked at,
    which stand for ``numel`` [n]; None where all are.
    """

    names: tuple[str, ...]
    cells: Cells
    statistic: str = "subnormal"
    shard: int | None = None
    search: str = ""
    level: Literal["parameter", "module", "block"] | None = None
    chosen: str | None = None
    sample: ParameterSample | None = None
    looked_at: int | None = None
    numel: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class ScaleSource:
    """A gradient, of one parameter or of all, as samples of the steps ``first`` to ``last`` have it; ``format`` is what
    it is moved into, and ``level`` the power of two that the reader looks at."""

    gradient: Gradient
    gone: Flushed | None
    first: int
    last: int
    parameter: str | None = None
    format: str = "fp16"
    level: int | None = None
    policy: ScalePolicy = field(default_factory=ScalePolicy)
    recommended: Recommended = field(default_factory=Recommended)


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """A run as it was and under another policy, with the paths of their scales; ``whole``: all of it is replayed."""

    recorded: Simulation
    simulated: Simulation
    whole: bool
    policy: ScalePolicy = field(default_factory=ScalePolicy)
    recommended: Recommended = field(default_factory=Recommended)


@dataclass(frozen=True, slots=True)
class Source:
    """One scaler of a run, at least over the view. ``disabled``: the scaler is off, so nothing scales.

    ``updates`` and ``gradients`` are cells of both (`ampmon_server.model.aggregates`), in order of step: enough to fill
    the view, and none of them in it in part. ``user`` are the user's own steps, where there are any. ``modules`` is the
    newest sample of activations in the view, which only the chart of it is given. ``scalars`` are cells of what was
    logged, by name, ``logged`` every name, the first to be drawn first, and ``parameters`` cells of each parameter:
    only their charts are given them.
    """

    updates: Cells
    gradients: Cells
    disabled: bool = False
    modules: ModuleSample | None = None
    user: UserSteps | None = None
    scalars: Mapping[str, Cells] = field(default_factory=dict)
    logged: Sequence[str] = ()
    parameters: ParameterSource | None = None
    rows_from: int = 0
    """Before this step no single update is held any more, but cells of 16."""
    flushed: Flushed | None = None
    """What fp16 flushed at the newest scale, where ``newest``: only its chart gets it, and only of the newest."""
    newest: bool = False
    ranks: Sequence[RankRows] = ()
    """What each rank has at the same steps; only their chart is given it."""
    resumes: Sequence[Resume] = ()
    """Starts of processes that went on with the run, in view or not."""
    scales: ScaleSource | None = None
    """What is moved to other scales; only that chart is given it, or in ``why_none`` why there is nothing."""
    why_none: str = ""
    replayed: ReplaySource | None = None
    """The run under another policy; only that chart is given it."""


@dataclass(frozen=True, slots=True)
class Window:
    """A source cut to a view: ``low`` and ``high`` are the first and last x drawn. The user's own steps lie between
    whole numbers too: of those ``high`` is the very last, and ``low`` a whole number at or before the first.

    ``updates`` is a cell for each pixel column that holds any, in order of x: the columns are multiples of ``span``,
    so that they stay where they are as updates are added.
    """

    low: int
    high: float
    span: float
    updates: Cells
    gradients: Cells
    x: XAxis
    pruned_before: int = 0
    """Before this step cells are drawn for want of single updates; 0 where none are missed."""

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step of an update in the window, which must have one."""
        return int(self.updates["first"].min()), int(self.updates["last"].max())

    @property
    def all_updates(self) -> Cells:
        """The updates as one cell; the window must have one."""
        return LAYOUT.merge(self.updates, np.zeros(1, np.int64))

    def columns(self, cells: Cells, most: int, layout: Layout = LAYOUT) -> tuple[Cells, float]:
        """Some of its cells as at most ``most`` columns (2 or more), each a multiple of the span that is also given.

        ``layout`` says how they merge: as updates, unless said otherwise.
        """
        span = aligned_span(self.low, self.high, most)
        keys = np.floor_divide(self.x.at(cells, "first"), span).astype(np.int64)
        return layout.merge(cells, starts_of(keys)), span


@dataclass(frozen=True, slots=True)
class XAxis:
    """What x is: the step, the time, or the user's own step, which lies between whole numbers where it is not known."""

    kind: Axis
    user: UserSteps | None = None

    def at(self, cells: Cells, place: Place) -> Ints | Floats:
        """The x of a place in each of n cells, [n]; of a move, of each kind of them, [n, kinds]."""
        step, time = PLACES[place]
        return self.of(cells[step], cells[time])

    def of(self, steps: Ints, times: Ints) -> Ints | Floats:
        """The x of updates that have these steps and times."""
        if self.kind == "time":
            return times
        return self.user.forth(steps) if self.kind == "user" and self.user is not None else steps


def cut(source: Source, view: View) -> Window:
    """What ``source`` has in ``view``."""
    x = XAxis(view.x, source.user)
    updates, gradients = (_cut(cells, x, view) for cells in (source.updates, source.gradients))
    low, high = ends((updates, gradients), x, view)
    span = aligned_span(low, high, view.columns)
    window = Window(low, high, span, updates, gradients, x)
    # So few would be drawn one by one, if they were held.
    missed = int(updates["n"].sum()) < ROWS_PER_COLUMN * view.columns
    missed = missed and bool((updates["first"] < source.rows_from).any())
    return replace(
        window,
        updates=window.columns(updates, view.columns)[0],
        pruned_before=source.rows_from if missed else 0,
    )


def ends(series: Sequence[Cells], x: XAxis, view: View) -> tuple[int, float]:
    """The first and the last x of a view, or of what is in it."""
    filled = [cells for cells in series if len(cells)]
    lows = [math.floor(x.of(cells["first"], cells["time_min"]).min()) for cells in filled]
    highs = [x.of(cells["last"], cells["time_max"]).max().item() for cells in filled]
    low = view.start if view.start is not None else min(lows, default=0)
    high: float = max(highs, default=low)
    if view.stop is not None:
        high = math.nextafter(view.stop, -math.inf) if view.x == "user" else view.stop - 1
    return low, max(low, high)


def _cut(cells: Cells, x: XAxis, view: View) -> Cells:
    at = x.at(cells, "first")
    if (np.diff(at) < 0).any():  # the clock was set back
        cells = cells[np.argsort(at, kind="stable")]
        at = x.at(cells, "first")
    return cells if view.whole else cells[_within(at, view)]


def _within(x: Ints | Floats, view: View) -> Ints:
    first = 0 if view.start is None else int(np.searchsorted(x, view.start))
    last = len(x) if view.stop is None else int(np.searchsorted(x, view.stop))
    return np.arange(first, last)
