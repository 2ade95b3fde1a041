"""The data that diagnosis and policy analysis get about a run. Its size is bounded, however long the run is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampmon.wire import Finding
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.series import GradientSeries, Ints, Resume


RECENT = 2048
"""How many of the first and of the newest updates are given one by one."""

SKIPS = 1000
"""How many of the newest skip ledger rows are given."""

CULPRITS = 16
"""How many culprits of a skip are given, the first to overflow first."""


LOST = "not_finite"
"""Value of `Skip.loss` for a loss that was inf or NaN before it was scaled."""


@dataclass(frozen=True, slots=True)
class SkipCulprit:
    """A parameter whose gradient was not finite. ``inf`` and ``nan`` are None if its elements were not counted."""

    parameter: str
    inf: int | None
    nan: int | None


@dataclass(frozen=True, slots=True)
class Skip:
    """One optimizer's skip in one update on one rank. ``cause`` is inf, nan, inf+nan or unknown.

    ``origin`` is where the overflow began: in the model's input, forward, in the loss, or backward.
    ``origin_module`` is the first module that showed it. Both are None if unknown. ``loss`` is the state of the value
    passed to `scale()`: finite, not_finite, or overflowed (finite until it was scaled).
    """

    step: int
    time: int
    stream: str
    rank: int
    scaler: str
    attempt: int
    optimizer: str
    path: str
    cause: str
    scale: float | None
    scale_kind: str | None
    scale_after: float | None
    scale_after_kind: str | None
    culprits: list[SkipCulprit]
    culprit_order: str
    culprit_parameters: int
    origin: str | None
    origin_module: str | None
    loss: str | None

    @property
    def beyond_scale(self) -> bool:
        """Whether no scale would have prevented the skip, judged by this row alone.

        That is so if the loss was not finite or, where the loss is unknown, if the gradients held NaN and no inf.
        """
        return self.loss == LOST or (self.loss is None and self.cause == "nan")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event. ``scaler`` is empty for events of the process. ``step`` is the update after the event, if known."""

    time: int
    kind: str
    stream: str
    rank: int
    scaler: str
    attempt: int
    seq: int
    step: int | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCase:
    """A scaler's parameters and the ``cells`` (`ampmon_server.model.aggregates.parameters`) of its newest samples.

    ``numel`` [n] is each parameter's number of elements, in the order of ``names``. Of a parameter with more elements
    than ``sample``, only that many are looked at. If ``sample`` is None, every element is.
    """

    names: tuple[str, ...]
    numel: Ints
    cells: Cells
    sample: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalerCase:
    """One scaler on all ranks. Cells are those of `ampmon_server.model.aggregates`, in order of step.

    Instances compare by identity.

    ``updates`` covers the whole run in a few hundred cells. ``first`` and ``recent`` are its first and
    newest `RECENT` updates, a cell each; they may overlap. Of a pruned run, ``first`` has cells of 16 and more updates,
    and ``recent`` only those that are still held one by one. ``samples`` are the newest samples and those next to
    changes of the scale. ``skips`` are the newest ledger rows, newest first, without superseded rows. ``forgotten``
    are the resumes that lost the scale. ``ranks`` are each rank's own newest updates in the newest start, if that has
    several ranks. ``growth_tracker`` is its value after the newest update, None if there is no update. ``logged`` are
    the cells of a few logged names; only the run's first scaler has any, because they have its steps.
    """

    name: str
    policy: ScalePolicy
    first: Cells
    updates: Cells
    recent: Cells
    samples: GradientSeries
    parameters: ParameterCase
    skips: tuple[Skip, ...] = ()
    forgotten: tuple[Resume, ...] = ()
    ranks: Mapping[int, Cells] = field(default_factory=dict)
    growth_tracker: int | None = None
    logged: Mapping[str, Cells] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run at its ``version``. Times are microseconds since the epoch; ``now`` is the time of the diagnosis.

    ``status`` is running, finished, crashed or silent. ``last_time`` is the time of the newest record, but no later
    than the server received it. ``begun``: the newest start has made an update. ``events`` are the newest, newest
    first; lints are included however old they are. ``config`` is the newest attempt's configuration. ``scheduled``
    counts skipped updates after which the learning rate changed anyway. ``measurement`` is when the pending measurement
    was requested. It is 0 if none is pending, and None if the script names nothing to measure. ``findings`` are those
    that an ended run had before its rows were pruned, else None.
    """

    run_id: str
    now: int
    version: int = 0
    status: str = "running"
    last_time: int | None = None
    begun: bool = True
    update_us: float = 0.0
    updates: int = 0
    skipped: int = 0
    scheduled: int = 0
    lost: int = 0
    dropped: int = 0
    rivals: int = 0
    attempts: int = 0
    ranks: int = 1
    scalers: tuple[ScalerCase, ...] = ()
    events: tuple[RunEvent, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    measurement: int | None = None
    findings: tuple[Finding, ...] | None = None

    def of_newest_start(self, kind: str) -> Iterator[RunEvent]:
        """Yield the events of a kind in the run's newest start, the oldest first."""
        for event in reversed(self.events):
            if event.kind == kind and event.attempt == self.attempts - 1:
                yield event
