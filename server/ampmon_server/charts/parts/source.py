"""The input of a chart: its data (`Source`) and its `View`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ampmon_server.analysis.policy.simulation import Path, Recommended, Simulation
from ampmon_server.model.aggregates.gradients import empty as no_gradients
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import empty as no_updates
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import (
    Ints,
    ModuleSample,
    ParameterSample,
    RankRows,
    Resume,
    StepClock,
    UserSteps,
)


if TYPE_CHECKING:
    from ampmon_server.analysis.flushed import Flushed
    from ampmon_server.analysis.policy.history import History
    from ampmon_server.analysis.whatif import Gradient

WIDTH_MAX = 1000
"""A chart has at most this many pixel columns, however wide the screen is."""

Axis: TypeAlias = Literal["step", "time", "user"]
Position: TypeAlias = Literal["alone", "stacked", "last"]
Level: TypeAlias = Literal["parameter", "module", "block"]
Number = TypeVar("Number", float, npt.NDArray[Any])


@dataclass(frozen=True, slots=True)
class View:
    """The stretch of x to draw, ``start`` <= x < ``stop``, and what the reader chose to see of it.

    x is the step, the time in us since the epoch, or the user's own step. A ``start`` or ``stop`` of None is the run's
    own end. ``width`` is the plot's width in pixels. ``format`` is the number format to draw or to try. ``y`` is the
    type of the axis of logged values. ``zone`` is the time zone that the time axis names, in minutes east of UTC. The
    page moves times to it. Plotly itself shows the browser's clock.

    ``position`` says whether a chart stands alone or in the page's stack. In the stack, a chart is lower and has no
    legend, and only the ``last`` one has an x axis. Charts of several runs draw logged values as medians of ``smooth``
    columns: 0 draws every value, None chooses by the number of runs and values.

    ``statistic`` is what to draw of each parameter that matches ``search``. ``level`` is how finely rows split the
    parameters; None splits them as finely as there is room. ``parameter`` is the one to show in detail, and
    ``whatif_scale`` the power of two of a scale to try.
    """

    start: int | None = None
    stop: int | None = None
    width: int = WIDTH_MAX
    x: Axis = "step"
    format: Literal["fp16", "bf16", "e4m3", "e5m2"] = "fp16"
    y: Literal["linear", "log"] = "linear"
    zone: int | None = None
    position: Position = "alone"
    smooth: int | None = None
    statistic: str = "subnormal"
    search: str = ""
    level: Level | None = None
    parameter: str | None = None
    whatif_scale: int | None = None

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
        """Return x as Plotly takes it: steps unchanged, times in ms, which it shows by the browser's clock."""
        return x / 1000 if self.x == "time" else x


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """Cells of the parameters that a view shows (`ampmon_server.model.aggregates.parameters`), by name.

    For sharded gradients, ``shard`` is the rank whose shards they are. A larger parameter has only ``looked_at``
    elements sampled, which stand for all its ``numel`` [n]; None means that all elements are sampled.
    """

    names: tuple[str, ...]
    cells: Cells
    shard: int | None = None
    looked_at: int | None = None
    numel: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class ScaleSource:
    """A gradient to try at other scales, of one parameter or of all.

    ``gone`` is the estimate of what fp16 flushed, None if it is unknown.
    """

    gradient: Gradient
    gone: Flushed | None
    policy: ScalePolicy = field(default_factory=ScalePolicy)
    recommended: Recommended = field(default_factory=Recommended)


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """A ``history`` as recorded and as simulated under another policy, with the paths of both, ``was`` and ``path``."""

    history: History
    recorded: Simulation
    was: Path
    simulated: Simulation
    path: Path
    recommended: Recommended = field(default_factory=Recommended)


@dataclass(frozen=True, slots=True)
class Source:
    """One scaler of a run, at least over the view. ``disabled`` says that the scaler is off, so nothing is scaled.

    ``updates`` and ``gradients`` are cells (`ampmon_server.model.aggregates`) in order of step: enough to fill the
    view, and none only partly in it. ``user`` maps steps to the user's own, None without any.

    Only the charts that draw them get the following. ``modules`` is the newest sample of activations in the view.
    ``scalars`` are cells of logged values, by name. ``logged`` holds every logged name, in the order of drawing.
    Names of ``others`` were logged after steps of other scalers. A ``clock`` gives their values steps of this one.
    ``parameters`` are the cells of each parameter, and ``sample`` is the newest sample of one.
    """

    updates: Cells = field(default_factory=no_updates)
    gradients: Cells = field(default_factory=no_gradients)
    disabled: bool = False
    modules: ModuleSample | None = None
    user: UserSteps | None = None
    scaler: str = ""
    scalars: Mapping[str, Cells] = field(default_factory=dict)
    logged: Sequence[str] = ()
    others: Sequence[str] = ()
    clock: StepClock | None = None
    parameters: ParameterSource | None = None
    sample: ParameterSample | None = None
    rows_from: int = 0
    """Before this step, the store holds no single updates any more, only cells of 16."""
    flushed: Flushed | None = None
    """What fp16 flushed at the newest scale, None if unknown. Only its own chart gets it, and only if ``newest``."""
    newest: bool = False
    ranks: Sequence[RankRows] = ()
    """The rows of each rank at the same steps. Only the chart of ranks gets them."""
    resumes: Sequence[Resume] = ()
    """The process starts that resumed the run, in view or not."""
    scales: ScaleSource | str = ""
    """The gradient to try at other scales, or the reason why there is none. Only that chart gets it."""
    replayed: ReplaySource | None = None
    """The run under another policy. Only that chart gets it."""
