"""The input of a chart: its data (`Source`) and its `View`. Owns the x axis and cuts a source to a view."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ampmon_server.analysis.flushed import Flushed
from ampmon_server.analysis.policy.simulation import Recommended, Simulation
from ampmon_server.analysis.whatif import Gradient
from ampmon_server.model.aggregates.merging import Cells, Layout, aligned_span, starts_of
from ampmon_server.model.aggregates.updates import LAYOUT
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import (
    Floats,
    Ints,
    ModuleSample,
    ParameterSample,
    RankRows,
    Resume,
    StepClock,
    UserSteps,
)


WIDTH_MAX = 1000
"""A chart has at most this many pixel columns, however wide the screen is."""

ROWS_PER_COLUMN = 4
"""With fewer updates per column than this, a source holds single updates, if the store still has them."""

Axis: TypeAlias = Literal["step", "time", "user"]
Position: TypeAlias = Literal["alone", "stacked", "last"]
Figure: TypeAlias = dict[str, Any]
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
"""The fields that hold the step and the time of each place in a cell."""


@dataclass(frozen=True, slots=True)
class View:
    """The stretch of x to draw, ``start`` <= x < ``stop``, and how to draw it.

    x is the step, the time in us since the epoch, or the user's own step. A ``start`` or ``stop`` of None is the run's
    own end. ``width`` is the plot's width in pixels. ``format`` is the number format whose window is drawn over
    exponents. ``y`` is the type of the axis of logged values. Other charts ignore both. ``zone`` is the time zone of
    displayed times, in minutes east of UTC.

    ``position`` says whether a chart stands alone or in the page's stack. In the stack, a chart is lower and has no
    legend, and only the ``last`` one has an x axis. Charts of several runs draw logged values as medians of ``smooth``
    columns: 0 draws every value, None chooses by the number of runs and values.
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
        """Whether the plot is as narrow as on a phone, with no room for labels beside it."""
        return self.width < 480

    @property
    def stacked(self) -> bool:
        return self.position != "alone"

    @property
    def whole(self) -> bool:
        return self.start is None and self.stop is None

    def in_plot(self, x: Number) -> Number:
        """Return x as Plotly takes it: steps unchanged, times in ms.

        Plotly shows times as UTC, so times are shifted to the clock of the view's zone.
        """
        return x / 1000 + 60_000 * self.zone if self.x == "time" else x


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """Cells of parameters in a view (`ampmon_server.model.aggregates.parameters`), by name, and what to draw of them.

    ``names`` are the parameters that match ``search``. For sharded gradients, ``shard`` is the rank whose shards they
    are. One parameter may be ``chosen``; ``sample`` is its newest sample in the view. ``level`` is how finely rows
    split the parameters; None splits them as finely as there is room. A larger parameter has only ``looked_at``
    elements sampled, which stand for all its ``numel`` [n]; None means that all elements are sampled.
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
    """A gradient to try at other scales, of one ``parameter`` or of all, from steps ``first`` to ``last``.

    ``format`` is the number format to try. ``level`` is the power of two that the reader chose. ``gone`` is the
    estimate of what fp16 flushed, None if it is unknown.
    """

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
    """A run as recorded and as simulated under another policy, with the paths of both scales.

    ``whole`` says whether the replay covers the whole run.
    """

    recorded: Simulation
    simulated: Simulation
    whole: bool
    policy: ScalePolicy = field(default_factory=ScalePolicy)
    recommended: Recommended = field(default_factory=Recommended)


@dataclass(frozen=True, slots=True)
class Source:
    """One scaler of a run, at least over the view. ``disabled`` says that the scaler is off, so nothing is scaled.

    ``updates`` and ``gradients`` are cells (`ampmon_server.model.aggregates`) in order of step: enough to fill the
    view, and none only partly in it. ``user`` maps steps to the user's own, None without any.

    Only the charts that draw them get the following. ``modules`` is the newest sample of activations in the view.
    ``scalars`` are cells of logged values, by name. ``logged`` holds every logged name, in the order of drawing.
    Names of ``others`` were logged after steps of other scalers. A ``clock`` gives their values steps of this one.
    ``parameters`` are the cells of each parameter.
    """

    updates: Cells
    gradients: Cells
    disabled: bool = False
    modules: ModuleSample | None = None
    user: UserSteps | None = None
    scaler: str = ""
    scalars: Mapping[str, Cells] = field(default_factory=dict)
    logged: Sequence[str] = ()
    others: Sequence[str] = ()
    clock: StepClock | None = None
    parameters: ParameterSource | None = None
    rows_from: int = 0
    """Before this step, the store holds no single updates any more, only cells of 16."""
    flushed: Flushed | None = None
    """What fp16 flushed at the newest scale, None if unknown. Only its own chart gets it, and only if ``newest``."""
    newest: bool = False
    ranks: Sequence[RankRows] = ()
    """The rows of each rank at the same steps. Only the chart of ranks gets them."""
    resumes: Sequence[Resume] = ()
    """The process starts that resumed the run, in view or not."""
    scales: ScaleSource | None = None
    """The gradient to try at other scales. Only that chart gets it; if it is None, ``why_none`` says why."""
    why_none: str = ""
    replayed: ReplaySource | None = None
    """The run under another policy. Only that chart gets it."""


@dataclass(frozen=True, slots=True)
class Window:
    """A source cut to a view. ``low`` and ``high`` are the first and the last x drawn.

    The user's own steps may be fractions. Then ``high`` is exactly the last one, and ``low`` is a whole number at or
    before the first. ``updates`` has a cell for each pixel column that holds any update, in order of x. Columns are
    aligned to multiples of ``span``, so they stay in place as updates are added.
    """

    low: int
    high: float
    span: float
    updates: Cells
    gradients: Cells
    x: XAxis
    pruned_before: int = 0
    """Before this step the window has cells because the single updates were pruned; 0 if it misses none."""

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step of the window's updates. The window must have one."""
        return int(self.updates["first"].min()), int(self.updates["last"].max())

    @property
    def in_steps(self) -> Cells:
        """The updates in order of step. A clock that was set back gives them another order of x."""
        return self.updates[np.argsort(self.updates["first"], kind="stable")]

    @property
    def all_updates(self) -> Cells:
        """The updates merged into one cell. The window must have one."""
        return LAYOUT.merge(self.in_steps, np.zeros(1, np.int64))

    def columns(self, cells: Cells, most: int, layout: Layout = LAYOUT) -> tuple[Cells, float]:
        """Merge some of the window's cells into at most ``most`` columns (2 or more). Return them and their span.

        Columns are aligned to multiples of the span. ``layout`` says how cells merge; the default is for updates.
        """
        span = aligned_span(self.low, self.high, most)
        keys = np.floor_divide(self.x.at(cells, "first"), span).astype(np.int64)
        if (np.diff(cells["first"]) < 0).any():  # the clock was set back
            order = np.lexsort((cells["first"], keys))
            cells, keys = cells[order], keys[order]
        return layout.merge(cells, starts_of(keys)), span


@dataclass(frozen=True, slots=True)
class XAxis:
    """What x is: the step, the time, or the user's own step.

    Where the user's step is unknown, it is interpolated and may be a fraction. With a ``clock``, steps are not those
    given, which another scaler counts, but the shown scaler's at the same times. The time is that since ``origin``.
    """

    kind: Axis
    user: UserSteps | None = None
    clock: StepClock | None = None
    origin: int = 0

    def at(self, cells: Cells, place: Place) -> Ints | Floats:
        """Return the x of a place in each of n cells, [n]. A move has one for each kind of move, [n, kinds]."""
        step, time = PLACES[place]
        return self.of(cells[step], cells[time])

    def of(self, steps: Ints, times: Ints) -> Ints | Floats:
        if self.kind == "time":
            return times - self.origin
        steps = self.steps(steps, times)
        return self.user.forth(steps) if self.kind == "user" and self.user is not None else steps

    def steps(self, steps: Ints, times: Ints) -> Ints:
        """Return the shown scaler's steps."""
        return steps if self.clock is None else self.clock.at(times)


def axis_of(source: Source, name: str, view: View, origin: int = 0) -> XAxis:
    """Return the x axis of the values logged under ``name``, with times since ``origin``."""
    return XAxis(view.x, source.user, source.clock if name in source.others else None, origin)


def cut(source: Source, view: View, origin: int = 0) -> Window:
    """Cut ``source`` to ``view``, with times since ``origin``, and merge its updates into pixel columns."""
    x = XAxis(view.x, source.user, origin=origin)
    updates, gradients = (in_view(cells, x, view) for cells in (source.updates, source.gradients))
    low, high = ends((updates, gradients), x, view)
    span = aligned_span(low, high, view.columns)
    window = Window(low, high, span, updates, gradients, x)
    # With so few updates, the chart would draw each of them if the store still had them.
    missed = int(updates["n"].sum()) < ROWS_PER_COLUMN * view.columns
    missed = missed and bool((updates["first"] < source.rows_from).any())
    return replace(
        window,
        updates=window.columns(updates, view.columns)[0],
        pruned_before=source.rows_from if missed else 0,
    )


def ends(series: Sequence[Cells], x: XAxis, view: View) -> tuple[int, float]:
    """Return the first and the last x of a view. Where the view is open, return that of ``series``."""
    filled = [cells for cells in series if len(cells)]
    lows = [math.floor(x.of(cells["first"], cells["time_min"]).min()) for cells in filled]
    highs = [x.of(cells["last"], cells["time_max"]).max().item() for cells in filled]
    low = view.start if view.start is not None else min(lows, default=0)
    high: float = max(highs, default=low)
    if view.stop is not None:
        high = math.nextafter(view.stop, -math.inf) if view.x == "user" else view.stop - 1
    return low, max(low, high)


def in_view(cells: Cells, x: XAxis, view: View) -> Cells:
    """Return the cells that a view shows, in order of x."""
    at = x.at(cells, "first")
    if (np.diff(at) < 0).any():  # the clock was set back
        order = np.argsort(at, kind="stable")
        cells, at = cells[order], at[order]
    first = 0 if view.start is None else int(np.searchsorted(at, view.start))
    last = len(at) if view.stop is None else int(np.searchsorted(at, view.stop))
    return cells[first:last]


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
