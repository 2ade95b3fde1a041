"""Follows one run through a server: its current state, and what has happened since the last look."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ampmon.system.plain import plain_finding
from ampmon.wire import Finding, Severity
from ampmon_server.cli.terminal.answers import (
    LoggedAnswer,
    LoggedNames,
    SkipAnswer,
    SkipsPage,
    loss_among,
    scale_of,
)
from ampmon_server.client import ApiClient
from ampmon_server.client.answers import Diagnosed, Run, read
from ampmon_server.client.sketch import Sketch, sketch
from ampmon_server.model.thresholds import RANKS
from ampmon_server.model.words import count, plural


JUDGED_EVERY_S = 5.0
"""Interval between diagnoses. A diagnosis reads more than a summary, so it is requested less often."""
ROWS_MAX = 1000
RATE_LOOKS = 30
"""Number of looks over which the rate of updates is averaged."""
ENDED = {"finished", "crashed"}


@dataclass(frozen=True, slots=True)
class News:
    """Something that has just happened. ``severity`` is set for a finding."""

    words: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """A run's current state. ``rate`` is in updates per second, None if unknown. The first one has no ``news``."""

    run: Run
    loss: LoggedAnswer | None
    drawn: Sketch
    findings: tuple[Finding, ...]
    news: tuple[News, ...]
    rate: float | None

    @property
    def ended(self) -> bool:
        return self.run.status in ENDED


class RunFollower:
    """Polls the run ``run_id``. ``columns`` returns the width at which to draw its scale; 0 draws none."""

    def __init__(
        self,
        server: ApiClient,
        run_id: str,
        *,
        columns: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server
        self._path = f"/runs/{run_id}"
        self._columns = columns
        self._clock = clock
        self._before: Run | None = None
        self._skips: dict[tuple[str, int], int] = {}
        self._judged_s = -JUDGED_EVERY_S
        self._judged_version = -1
        self._findings: dict[tuple[str, str], Finding] = {}
        self._loss: LoggedAnswer | None = None
        self._drawn = Sketch()
        self._seen: deque[tuple[int, int]] = deque(maxlen=RATE_LOOKS)

    def look(self) -> Moment:
        """Return the run's state, and what has happened since the last look. Blocks. Raises ClientError."""
        self._server.catch_up()
        run, before = read(self._server.get(self._path), Run), self._before
        news: list[News] = []
        if before is None or run.version != before.version:
            news += self._changed(before, run)
        if before is not None and run.status != before.status:
            news.append(News(f"the run is {run.status}"))
        if self._is_to_be_judged(run):
            news += self._judge(run)
        self._before = run
        findings = tuple(self._findings.values())
        return Moment(run, self._loss, self._drawn, findings, tuple(news), self._rate(run))

    def _changed(self, before: Run | None, run: Run) -> Iterator[News]:
        """Read the details of a new version of the run, and yield what is new."""
        self._loss = loss_among(read(self._server.get(f"{self._path}/scalars"), LoggedNames).names)
        if columns := self._columns():
            asked = {"width": str(columns)}
            chart = self._server.get(f"{self._path}/figures/scale", asked)
            self._drawn = sketch(chart, columns)
        if before is not None and run.attempts > before.attempts:
            yield News(f"started again ({plural(run.attempts, 'start')})")
        skips = self._new_skips() if before is None or run.skipped != before.skipped else []
        if before is None:
            return
        if skips:
            yield News(_skipped(skips))
        elif run.scale != before.scale and before.scale is not None:
            old, new = (scale_of(each.scale, each.scale_kind) for each in (before, run))
            yield News(f"scale {old} → {new}")

    def _new_skips(self) -> list[SkipAnswer]:
        """Skips after the last known one of the same scaler and start, newest first, one for each step."""
        body = self._server.get(f"{self._path}/skips", {"limit": str(ROWS_MAX)})
        rows = {}
        for row in reversed(read(body, SkipsPage).skips):
            of = row.scaler, row.attempt
            if row.step > self._skips.get(of, -1):
                self._skips[of] = row.step
                rows[row.scaler, row.step] = row
        return sorted(rows.values(), key=lambda row: row.time, reverse=True)

    def _is_to_be_judged(self, run: Run) -> bool:
        due = self._clock() - self._judged_s >= JUDGED_EVERY_S or run.status in ENDED
        return due and run.version != self._judged_version

    def _judge(self, run: Run) -> Iterator[News]:
        diagnosed = read(self._server.get(f"{self._path}/diagnosis"), Diagnosed)
        self._judged_s, self._judged_version = self._clock(), run.version
        before = self._findings
        plain = map(plain_finding, diagnosed.findings)
        self._findings = {(each.rule, each.scaler): each for each in plain}
        if self._before is None:
            return
        worse = []
        for key, finding in self._findings.items():
            known = before.get(key)
            if known is None or RANKS[finding.severity] < RANKS[known.severity]:
                worse.append(News(finding.title, finding.severity))
        yield from worse
        # A finding that a worse one replaces is not resolved, so do not report it as gone.
        for key in () if worse else before.keys() - self._findings.keys():
            yield News(f"no longer found: {before[key].title}")

    def _rate(self, run: Run) -> float | None:
        if run.last_time is None:
            return None
        # By the times of the records, because they arrive in batches.
        self._seen.append((run.updates, run.last_time))
        (updates, began), (_, now) = self._seen[0], self._seen[-1]
        return (run.updates - updates) / (now - began) * 1e6 if now > began else None


def _skipped(skips: list[SkipAnswer]) -> str:
    """Describe skips, given newest first, in one line."""
    last = skips[0]
    words = f"step {count(last.step)} skipped"
    if len(skips) > 1:
        words = f"{count(len(skips))} steps skipped, the last at step {count(last.step)}"
    words += f": {last.cause}" if last.cause != "unknown" else ""
    words += f" in {last.culprit}" if last.culprit else ""
    return f"{words}, scale {scale_of(last.scale)} → {scale_of(last.scale_after)}"
