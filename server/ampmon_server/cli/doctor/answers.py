"""What the doctor reads of a server's answers; what else they hold is left alone."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ampmon.wire import Finding, Severity
from ampmon_server.cli.doctor.asking import Unanswered


Answer = TypeVar("Answer")


class Stream(msgspec.Struct, frozen=True):
    """A scaler on one rank; ``stream`` is its number in addresses of the page."""

    stream: str
    scaler: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A summary. ``started`` is in microseconds since the epoch."""

    run_id: str
    project: str
    name: str
    status: str
    started: int
    updates: int
    streams: tuple[Stream, ...] = ()


class Page(msgspec.Struct, frozen=True):
    """One page of the list of runs."""

    runs: tuple[Run, ...]
    next: str | None = None


class Training(msgspec.Struct, frozen=True):
    """What of the training counted; ``words`` are one sentence."""

    words: str = ""


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /runs/{run_id}/diagnosis."""

    verdict: str
    severity: Severity | None
    findings: tuple[Finding, ...]
    training: Training = Training()


def read(body: bytes, kind: type[Answer]) -> Answer:
    """The answer in ``body``. Raises Unanswered where it is not one."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Unanswered(
            f"the server's answer is not one that this ampmon reads ({error}): upgrade the older of the two"
        ) from None
