"""What those who judge a run are given of it: pure data, bounded however long the run is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.series import Forgotten, GradientSeries, Ints


RECENT = 2048
"""Of the newest updates, and of the first, so many are given one by one."""

SKIPS = 1000
"""So many of the newest rows of the skip ledger are given."""

CULPRITS = 16
"""Of each skip so many of its culprits are given, the first to overflow first."""

SAMPLES = 2000
"""At most so many sampled updates are given one by one."""


LOST = "not_finite"
"""A skip's loss that was inf or NaN before any scale touched it."""


@dataclass(frozen=True, slots=True)
class SkipCulprit:
    """A parameter whose gradient was not finite; None where its elements were not counted."""

    parameter: str
    inf: int | None
    nan: int | None


@dataclass(frozen=True, slots=True)
class Skip:
    """One optimizer's skip in one update on one rank. ``cause``: inf, nan, inf+nan or unknown.

    ``origin`` says where the overflow began: in the model's input, forward, in the loss, or backward, and
    ``origin_module`` the first module where it was seen; None where that is not known. ``loss`` says whether what
    `scale()` was given was finite, not_finite, or finite but overflowed when it was scaled.
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
        """Whether no scale would have prevented it, as far as its own row shows: the loss, or without it NaN alone."""
        return self.loss == LOST or (self.loss is None and self.cause == "nan")


@dataclass(frozen=True, slots=True)
class Happening:
    """An event; ``scaler`` is empty for the process itself. ``step`` is the update it came before, if there is one."""

    time: int
    kind: str
    stream: str
    rank: int
    scaler: str
    attempt: int
    seq: int
    step: int | None
    detail: dict[str, Any]


INIT_SCALE = 65536.0
"""Torch's own first scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    """How a scaler moves its scale, as its newest attempt said, and the script's own ``arguments`` for it, as code."""

    scaler_type: str = "ampmon.client.scaler.GradScaler"
    device: str = "cuda"
    layout: str = "replicated"
    init_scale: float = INIT_SCALE
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    arguments: Mapping[str, str] | None = None
    watched: bool = False

    @property
    def hysteresis(self) -> int:
        """Of the overflows since the scale last grew, the one from which on each lowers the scale: torch's is 1."""
        return int(self._further("hysteresis") or 1)

    @property
    def consecutive(self) -> bool:
        """Whether the hysteresis is of overflows in a row instead."""
        return bool(self._further("consecutive"))

    @property
    def min_scale(self) -> float:
        """The scale is never lowered below it: torch's is 0."""
        return self._further("min_scale") or 0.0

    def _further(self, name: str) -> float | None:
        """A rule that torch's scaler has not, which `ampmon.Policy` puts behind the scaler's type."""
        found = re.search(
            rf"\b{name}=(\d{{1,20}}(\.\d{{1,20}})?(e[+-]\d{{1,2}})?)[,)]", self.scaler_type
        )
        return float(found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCase:
    """The parameters of a scaler, and their ``cells`` (`ampmon_server.model.aggregates.parameters`): of newest samples.

    ``numel`` [n] are the elements of each, in the order of ``names``; of larger ones than ``sample`` so many are looked
    at, of all where it is None.
    """

    names: tuple[str, ...]
    numel: Ints
    cells: Cells
    sample: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalerCase:
    """One scaler on all ranks. Cells are those of `ampmon_server.model.aggregates`, in order of step.

    It is equal to itself alone.

    ``updates`` and ``gradients`` are of the whole run, a few hundred cells. ``first`` and ``recent`` are its first and
    newest `RECENT` updates, a cell each; they may overlap. ``samples`` are newest samples one by one and those next to
    changes of the scale, at most `SAMPLES`. ``skips`` are the newest rows of the ledger, the newest first, none
    superseded. ``ranks`` are the newest updates of each rank by itself, where there are several. ``growth_tracker`` is
    what the newest update left: None without one.
    """

    name: str
    number: int
    policy: ScalePolicy
    first: Cells
    updates: Cells
    recent: Cells
    gradients: Cells
    samples: GradientSeries
    parameters: ParameterCase
    skips: tuple[Skip, ...] = ()
    forgotten: tuple[Forgotten, ...] = ()
    ranks: Mapping[int, Cells] = field(default_factory=dict)
    optimizers: tuple[str, ...] = ()
    growth_tracker: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run at its ``version``. Times are microseconds since the epoch; ``now`` is when it is judged.

    ``status`` is running, finished, crashed or silent. ``last_time`` is of the newest record, no later than the
    server heard of it. ``events`` are the newest, the newest first, the lints all of them. ``logged`` are cells
    (`ampmon_server.model.aggregates.scalars`) of the first few names that were logged. ``config`` is what the newest
    attempt was given as its configuration. ``scheduled`` counts the skipped updates after which the learning rate was
    changed all the same. ``measurement`` is when somebody asked for one that is still to come: 0 where nobody has, None
    where the script names nothing to measure.
    """

    run_id: str
    now: int
    version: int = 0
    status: str = "running"
    disabled: bool = False
    last_time: int | None = None
    update_us: float = 0.0
    updates: int = 0
    skipped: int = 0
    scheduled: int = 0
    lost: int = 0
    dropped: int = 0
    errors: int = 0
    rivals: int = 0
    attempts: int = 0
    ranks: int = 1
    scalers: tuple[ScalerCase, ...] = ()
    events: tuple[Happening, ...] = ()
    logged: Mapping[str, Cells] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    measurement: int | None = None
