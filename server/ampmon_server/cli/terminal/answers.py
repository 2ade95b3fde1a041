"""The parts of a server's answers that only the terminal commands read."""

from __future__ import annotations

import msgspec

from ampmon.system.plain import plain
from ampmon.wire import Severity
from ampmon_server.client.answers import Run


class SummaryAnswer(Run, frozen=True, kw_only=True):
    """A run's summary. Fractions are 0..1, ``last_time`` is in us since the epoch, ``elapsed`` in seconds."""

    owner: str = ""
    tags: tuple[str, ...] = ()
    archived: bool = False
    elapsed: float | None = None
    last_time: int | None = None
    last_step: int | None = None
    skipped: int = 0
    skip_rate: float | None = None
    scale: float | None = None
    scale_kind: str | None = None
    zero_fraction: float | None = None
    subnormal_fraction: float | None = None
    headroom_bits: float | None = None
    overhead: float | None = None
    lost_records: int = 0
    ranks: int = 1
    attempts: int = 1
    verdict: str | None = None
    severity: Severity | None = None
    version: int = 0


class RunListAnswer(msgspec.Struct, frozen=True):
    """One page of the list of runs. ``total`` is how many runs match the filters."""

    runs: tuple[SummaryAnswer, ...]
    total: int = 0


class LoggedAnswer(msgspec.Struct, frozen=True):
    """A logged name and its newest value. ``value_kind`` is the kind of a value that is not finite."""

    name: str
    value: float | None = None
    value_kind: str | None = None
    step: int = 0


class LoggedNames(msgspec.Struct, frozen=True):
    """The answer of GET /runs/{run_id}/scalars."""

    names: tuple[LoggedAnswer, ...] = ()


class CulpritAnswer(msgspec.Struct, frozen=True):
    """A parameter whose gradient was not finite."""

    parameter: str


class SkipAnswer(msgspec.Struct, frozen=True):
    """One optimizer's skip on one rank. ``time`` is in us since the epoch."""

    step: int
    time: int = 0
    scaler: str = ""
    attempt: int = 0
    cause: str = "unknown"
    scale: float | None = None
    scale_after: float | None = None
    culprits: tuple[CulpritAnswer, ...] = ()

    @property
    def culprit(self) -> str:
        """The first parameter that overflowed, in plain text. Empty if unknown."""
        return plain(self.culprits[0].parameter, 256) if self.culprits else ""


class SkipsPage(msgspec.Struct, frozen=True):
    """A page of GET /runs/{run_id}/skips, newest first."""

    skips: tuple[SkipAnswer, ...] = ()
