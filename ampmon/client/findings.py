"""The server's findings about the run, in the training process: kept, warned about, and passed to listeners.

All of it happens on the maintenance thread, except for the users' functions, which have a thread of their own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from ampmon import wire
from ampmon.spool.state import findings, requested
from ampmon.system.plain import RULE, plain_finding
from ampmon.training.series import Reader


FINDINGS_MAX, WARNINGS_MAX = 100, 32
"""Limits per answer and per process, because the server may not be trustworthy."""
_RANKS = {severity: rank for rank, severity in enumerate(get_args(wire.Severity))}


class FindingListener:
    """Passes the findings of one scaler and of the run to a function: each once, and again if it gets more severe."""

    def __init__(self, scaler: str, call: Callable[[wire.Finding], object]) -> None:
        self._scaler = scaler
        self._call = call
        self._passed: dict[tuple[str, str], int] = {}

    def news(self, findings: tuple[wire.Finding, ...]) -> Iterator[Callable[[], object]]:
        """Yield the calls to make for findings that are new or more severe."""
        for finding in of_scaler(findings, self._scaler):
            key, rank = (finding.rule, finding.scaler), _RANKS[finding.severity]
            if rank > self._passed.get(key, -1):
                self._passed[key] = rank
                yield partial(self._call, finding)


class Findings:
    """The findings about this process's run. ``newest`` has the worst first."""

    def __init__(
        self,
        warn: Callable[[str, str], None],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self.newest: tuple[wire.Finding, ...] = ()
        self._warned: set[str] = set()
        self._warn = warn
        self._failed = failed
        self._listeners: weakref.WeakSet[FindingListener] = weakref.WeakSet()
        self.restart()

    def restart(self) -> None:
        """Start over, as in a forked child, where no thread of the parent exists."""
        self.newest = ()
        self.request: int | None = None
        """When a measurement was last requested, by the server's clock; None if never."""
        self._read: bytes | None = None
        """The newest findings, as the sender wrote them."""
        self._caller = Reader(self._failed, thread="ampmon-findings", doing="on_finding")

    def listen(self, listener: FindingListener) -> None:
        """Pass new findings to this listener from now on. Holds it weakly."""
        self._listeners.add(listener)

    def look(self, path: Path) -> None:
        """Read what the sender left in the spool at ``path``. Raises OSError."""
        self.request = requested(path)
        written = findings(path)
        if written is not None and written != self._read:
            self._read = written
            with contextlib.suppress(msgspec.DecodeError):
                self.newest = tuple(_understood(written))
            for finding in self.newest:
                if finding.severity == "critical":
                    self._warn_of(finding)
        for listener in list(self._listeners):
            for call in listener.news(self.newest):
                self._caller.submit(call)

    def finish(self) -> None:
        """End the thread once it has made the waiting calls. Does not wait for it."""
        self._caller.finish(deadline=0.0)

    def _warn_of(self, finding: wire.Finding) -> None:
        if len(self._warned) == WARNINGS_MAX:
            return
        self._warned.add(finding.rule)
        instead = f" Write:\n{finding.fix}" if finding.fix and not finding.second else ""
        self._warn(f"finding {finding.rule}", f"ampmon: {finding.title}.{instead}")


def of_scaler(findings: tuple[wire.Finding, ...], scaler: str) -> tuple[wire.Finding, ...]:
    """The findings of one scaler, and of the run as a whole."""
    return tuple(finding for finding in findings if finding.scaler in {"", scaler})


def _understood(written: bytes) -> Iterator[wire.Finding]:
    """Yield the findings, except those in the format of a newer server, and those with an invalid name of a rule."""
    for finding in msgspec.msgpack.decode(written, type=list[Any])[:FINDINGS_MAX]:
        with contextlib.suppress(msgspec.ValidationError):
            known = msgspec.convert(finding, wire.Finding)
            if RULE.fullmatch(known.rule):
                yield plain_finding(known)
