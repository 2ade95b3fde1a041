"""Diagnoses runs as their records arrive, and stores the findings. It may fail or fall behind; ingest never waits.

It examines one run at a time, off the event loop. After each examination it rests for many times the processor time
that the examination took, so it uses only a small share of a core. It rests less when runs wait too long.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar
from uuid import UUID

from ampmon_server.alerting.targets import Alerts
from ampmon_server.analysis.diagnosis.diagnose import Diagnosis, diagnose
from ampmon_server.analysis.diagnosis.rules import silent
from ampmon_server.background.bus import Bus
from ampmon_server.background.writer import QueueFull, Writer
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store.alerts.alerts import Judgement
from ampmon_server.store.engine.errors import Busy, NotFound, StoreError
from ampmon_server.store.reading.alarms import AlertCalls


REST, REST_MIN = 40.0, 1.0
"""Rest in multiples of an examination's processor time: at most 1 / 41 of a core, or half when runs wait."""

WAIT_S, WAIT_MAX_S = 10.0, 20.0
"""How overdue a run may be before the worker rests less, and before it rests as little as allowed."""

AGAIN_S, POLL_S = 1.0, 0.25
"""Delay from a record to the examination of its run, and interval between checks for due runs."""

LATER_S = 60.0
"""Delay until the next examination of a run that could not be read, or of a running one that may have fallen silent."""

SEEK_S = 30.0
"""Interval between queries for runs to examine although no records arrive."""

SPARED_S = 3600.0
"""Delay until the next examination of a run that cannot be diagnosed, unless new records arrive."""

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


def rest_s(took_s: float, late_s: float) -> float:
    """How long to rest after an examination of ``took_s`` processor time, while a run has been due for ``late_s``."""
    hurry = min(max((late_s - WAIT_S) / (WAIT_MAX_S - WAIT_S), 0.0), 1.0)
    return took_s * (REST + (REST_MIN - REST) * hurry)


class DiagnosisWorker:
    """Diagnoses runs. ``failed`` counts failed examinations by exception, and failed rules by rule.

    ``looks`` counts all examinations. ``seconds`` is the processor time this process spent on them. ``clock`` returns
    seconds and decides when an examination is due.
    """

    def __init__(
        self,
        store: AlertCalls,
        writer: Writer,
        bus: Bus,
        thresholds: Thresholds,
        alerts: Alerts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failed: Counter[str] = Counter()
        self.looks, self.seconds = 0, 0.0
        self._store = store
        self._writer = writer
        self._bus = bus
        self._thresholds = thresholds
        self._alerts = alerts
        self._clock = clock
        self._silent: dict[UUID, int] = {}
        self._sought = float("-inf")
        self._due: dict[UUID, float] = {}
        self._spared: dict[UUID, float] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ampmon-judge")

    def note(self, run_id: UUID) -> None:
        """Schedule an examination of a run, after a new record of it is stored. Does not block."""
        soon = self._clock() + AGAIN_S
        self._due[run_id] = min(self._due.get(run_id, soon), soon)

    @property
    def late_s(self) -> float:
        """How long the most overdue run has been due. 0 if no run is due."""
        return max(self._clock() - min(list(self._due.values()), default=float("inf")), 0.0)

    async def keep_judging(self) -> None:
        """Examine due runs until cancelled. Failures are counted and do not end the loop."""
        while True:
            before = self.seconds
            try:
                await self._look(await self._next())
            except Exception as error:
                self._count(type(error).__name__, error)
                await asyncio.sleep(AGAIN_S)
            self.looks += 1
            await asyncio.sleep(rest_s(self.seconds - before, self.late_s))

    def close(self) -> None:
        """Finish the current examination."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def _next(self) -> UUID:
        """Wait until a run is due. Return the one that has been due for longest."""
        while True:
            if self._clock() - self._sought >= SEEK_S:
                self._sought = self._clock()
                await self._seek()
            due = list(self._due.items())
            run_id, when = min(due, key=lambda each: each[1], default=(None, 0.0))
            if run_id is not None and when <= self._clock():
                # Before the examination: a record that arrives during it makes the run due again.
                del self._due[run_id]
                return run_id
            await asyncio.sleep(POLL_S)

    async def _seek(self) -> None:
        """Schedule runs that fell silent, also before this process started, and runs that the store says are due."""
        runs_to_judge = partial(self._store.runs_to_judge, alerting=self._alerts is not None)
        try:
            found = await self._beside(runs_to_judge)
        except StoreError:
            return
        found = [each for each in found if self._spared.get(each.run_id, 0.0) <= self._sought]
        for each in found:
            # A silence is known by its time, so each one is examined once.
            if each.due or self._silent.get(each.run_id) != each.silent_after:
                self.note(each.run_id)
        self._silent = {each.run_id: each.silent_after for each in found}

    async def _look(self, run_id: UUID) -> None:
        self._spared.pop(run_id, None)
        try:
            wait = await self._judge(run_id)
        except NotFound:
            return
        except (Busy, QueueFull):
            wait = LATER_S
        except Exception as error:  # such as a damaged page: log it and go on
            self._count(type(error).__name__, error)
            self._spared[run_id] = self._clock() + SPARED_S
            return
        if wait is not None:
            self._due.setdefault(run_id, self._clock() + wait)

    async def _judge(self, run_id: UUID) -> float | None:
        """Examine a run and store the result. Return the seconds until the next examination, or None for none."""
        case, found = await self._beside(lambda: self._examine(run_id))
        for rule, error in found.failed.items():
            self._count(rule, error)
        judgement = Judgement(
            found.verdict, found.severity, found.findings, case.version, case.attempts
        )
        keep = self._counted(lambda: self._store.keep(run_id, judgement, self._alerts))
        kept = await self._writer.run(keep)
        if kept.change is not None:
            self._bus.publish(kept.change)
        waits = [] if kept.due is None else [max(kept.due / 1e6 - time.time(), AGAIN_S)]
        if case.status == "running":
            waits.append(LATER_S)
        left = silent.left_s(case, self._thresholds)
        if left is not None and left > 0:
            waits.append(max(left, AGAIN_S))
        return min(waits, default=None)

    def _examine(self, run_id: UUID) -> tuple[Case, Diagnosis]:
        case = self._store.case(run_id)
        return case, diagnose(case, self._thresholds)

    async def _beside(self, work: Callable[[], Result]) -> Result:
        counted = self._counted(work)
        return await asyncio.get_running_loop().run_in_executor(self._executor, counted)

    def _counted(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Wrap ``work`` to add its processor time to ``seconds``. Only one piece of work runs at a time."""

        def counted() -> Result:
            # Not the time on the clock: after one slow write, the worker would rest for hours.
            begun = time.thread_time()
            try:
                return work()
            finally:
                self.seconds += time.thread_time() - begun

        return counted

    def _count(self, what: str, error: Exception) -> None:
        if not self.failed[what]:
            _log.warning(
                "Checking runs for findings failed: %s. Further failures of this kind are only counted.",
                what,
                exc_info=error,
            )
        self.failed[what] += 1
