"""The parts of a server's answers that the command line reads. Other fields are ignored."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ampmon.wire import Finding, Severity
from ampmon_server.client.client import ClientError


Answer = TypeVar("Answer")

GOING_ON = {"running", "silent"}
"""Statuses of runs that can be stopped."""

RECOMMENDED = "Recommended:"
"""Heading of a fix that is not an alternative to another fix."""


class StreamAnswer(msgspec.Struct, frozen=True):
    """A scaler on one rank. ``stream`` is its number in page addresses."""

    stream: str
    scaler: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a run. ``started`` is in microseconds since the epoch."""

    run_id: str
    project: str
    name: str
    status: str
    started: int
    updates: int
    streams: tuple[StreamAnswer, ...] = ()


class RunsAnswer(msgspec.Struct, frozen=True):
    """One page of the list of runs."""

    runs: tuple[Run, ...]
    next: str | None = None


class TrainingAnswer(msgspec.Struct, frozen=True):
    """The share of the training that counted, in one sentence."""

    sentence: str = ""


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /runs/{run_id}/diagnosis."""

    verdict: str
    severity: Severity | None
    findings: tuple[Finding, ...]
    failed: tuple[str, ...] = ()
    training: TrainingAnswer = TrainingAnswer()


class SettingAnswer(msgspec.Struct, frozen=True):
    """A policy and its settings. None marks a setting that the policy does not have."""

    name: str
    init_scale: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None


class SkipsAnswer(msgspec.Struct, frozen=True):
    """Estimated skipped updates. ``known``: the band from ``low`` to ``high`` is narrow enough to be an answer."""

    low: int
    expected: float
    high: int
    known: bool = True


class SpentAnswer(msgspec.Struct, frozen=True):
    """How many updates run at a scale."""

    scale: float
    updates: float


class SimulationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A run under a policy. Fractions are 0..1 of gradient elements, or None if the run was not sampled."""

    policy: SettingAnswer
    skips: SkipsAnswer
    scales: tuple[SpentAnswer, ...] = ()
    zero_fraction: float | None = None
    subnormal_fraction: float | None = None
    ended: str | None = None
    words: str = ""
    code: str = ""
    second: str = ""


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /runs/{run_id}/simulate. ``whole``: all updates of the run were replayed."""

    first: int
    last: int
    updates: int
    whole: bool
    recorded: SimulationAnswer
    simulated: SimulationAnswer
    recommended: SimulationAnswer


def read(body: bytes, kind: type[Answer]) -> Answer:
    """Decode ``body`` as ``kind``. Raises ClientError if it does not match."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ClientError(
            f"cannot read the server's answer ({error}): its version differs from this one; upgrade the older"
        ) from None
