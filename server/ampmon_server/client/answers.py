"""The parts of a server's answers that the command line reads, without their other fields, and the run a user names.

A user names a run by its id, the start of an id, its name, or `latest`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TypeVar
from uuid import UUID

import msgspec

from ampmon.wire import Finding, Severity
from ampmon_server.client.client import ApiClient, ClientError, RequestRefused


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
    """The summary of a run. Fractions are 0..1, ``started`` and ``last_time`` in us since the epoch.

    ``elapsed`` is in seconds.
    """

    run_id: str
    project: str
    name: str
    status: str
    started: int
    updates: int
    streams: tuple[StreamAnswer, ...] = ()
    tags: tuple[str, ...] = ()
    elapsed: float | None = None
    last_time: int | None = None
    last_step: int | None = None
    skipped: int = 0
    skip_rate: float | None = None
    sampled_updates: int = 0
    scale: float | None = None
    scale_kind: str | None = None
    zero_fraction: float | None = None
    subnormal_fraction: float | None = None
    headroom_bits: float | None = None
    overhead: float | None = None
    budget: float | None = None
    over_budget: bool = False
    lost_records: int = 0
    ranks: int = 1
    attempts: int = 1
    verdict: str | None = None
    severity: Severity | None = None
    version: int = 0


class RunsAnswer(msgspec.Struct, frozen=True):
    """One page of the list of runs. ``total`` is how many runs match the filters."""

    runs: tuple[Run, ...]
    next: str | None = None
    total: int = 0


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


LATEST = "latest"
_PAGE = 1000
_NEAR = 5


def choose(server: ApiClient, wanted: str, *, archived_first: bool = False) -> Run:
    """Return the run that ``wanted`` names: the newest if several share a name. Archived runs are searched last.

    With ``archived_first`` they are searched first. Raises ClientError, which lists similar runs.
    """
    if wanted == LATEST:
        return _newest(server)
    try:
        return read(server.get(f"/runs/{UUID(wanted)}"), Run)
    except ValueError:
        pass  # it is no whole id
    except RequestRefused as refused:
        if refused.status != 404:
            raise
    listed: list[Run] = []
    for archived in (archived_first, not archived_first):
        runs = list(_all(server, archived=archived))
        if (found := _among(runs, wanted)) is not None:
            return found
        listed += runs
    raise ClientError(f"there is no run {wanted!r}{_near(wanted, listed)}")


def _among(runs: list[Run], wanted: str) -> Run | None:
    """Return the run of that name or id, or None. Raises ClientError if several ids start with ``wanted``."""
    named = [run for run in runs if run.name == wanted]
    begun = [run for run in runs if wanted and run.run_id.startswith(wanted.lower())]
    if named:
        return named[0]
    if len(begun) > 1:
        raise ClientError(f"{len(begun)} run ids begin with {wanted}: {_listed(begun)}")
    return begun[0] if begun else None


def _newest(server: ApiClient) -> Run:
    runs = read(server.get("/runs", {"limit": "1"}), RunsAnswer).runs
    if not runs:
        raise ClientError(
            "there is no run yet: record one with `ampmon run train.py`, or try `ampmon demo`"
        )
    return runs[0]


def _all(server: ApiClient, *, archived: bool) -> Iterator[Run]:
    """All archived or all other runs, newest first."""
    fields = {"limit": str(_PAGE), "archived": str(archived).lower()}
    while True:
        page = read(server.get("/runs", fields), RunsAnswer)
        yield from page.runs
        if page.next is None:
            return
        fields["cursor"] = page.next


def _near(wanted: str, runs: list[Run]) -> str:
    """The runs with a similar name or id, or else the newest, as the end of an error message."""
    if not runs:
        return "; there are no runs yet"
    words = {run.name: run for run in reversed(runs)} | {run.run_id: run for run in runs}
    alike = [words[word] for word in difflib.get_close_matches(wanted, words, _NEAR)]
    found = list({run.run_id: run for run in alike}.values())
    return f"; similar: {_listed(found)}" if found else f"; the newest: {_listed(runs)}"


def _listed(runs: list[Run]) -> str:
    shown = ", ".join(f"{run.name} ({run.run_id})" for run in runs[:_NEAR])
    return f"{shown} and {len(runs) - _NEAR} more" if len(runs) > _NEAR else shown
