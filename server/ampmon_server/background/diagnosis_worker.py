"""Judges runs as their records arrive, and keeps what it finds. It may fail and fall behind; ingest never waits for it.

It looks at one run at a time, beside the event loop, and rests after each look for many times the processor time that
the look took. So it costs a small share of a core, whatever a look costs. When runs wait too long, it rests less.
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
from ampmon_server.analysis.diagnosis import Diagnosis, diagnose
from ampmon_server.analysis.diagnosis.rules import silent
from ampmon_server.background.bus import Advance, Bus
from ampmon_server.background.writer import QueueFull, Writer
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.store import Judgement, NotFound, Store, StoreError


REST, REST_MIN = 25.0, 1.0
"""Times the processor time of a look: of a core, at most 1 / 26 is spent on looking, and a half when runs wait."""

WAIT_S, WAIT_MAX_S = 10.0, 20.0
"""A run may wait for a look so long before the worker rests less, and so long before it rests as little as it may."""

AGAIN_S, POLL_S = 1.0, 0.25
"""From a record to the look at its run; and so often it is asked what is due."""

LATER_S = 60.0
"""To the next look at a run that could not be read, or at one that goes on and may have fallen silent."""

SEEK_S = 30.0
"""Between two questions which runs are to be looked at though nothing of them arrives."""

SPARED_S = 3600.0
"""To the next look at a run that cannot be judged, unless something new of it arrives."""

Result = TypeVar("Result")
_log = logging.getLogger(__name__)


def rest_s(took_s: float, late_s: float) -> float:
    """How long to rest after a look that took so much processor time, while a run has been due for ``late_s``."""
    hurry = min(max((late_s - WAIT_S) / (WAIT_MAX_S - WAIT_S), 0.0), 1.0)
    return took_s * (REST + (REST_MIN - REST) * hurry)


class DiagnosisWorker:
    """Judges the runs that it is given. ``failed`` counts looks and rules that failed, by what raised.

    ``looks`` are all that it took, and ``seconds`` the processor time of this process for them.
    ``clock`` decides when a look is due; it returns seconds.
    """

    def __init__(
        self,
        store: Store,
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
        """Something new of a run is stored. Does not block."""
        soon = self._clock() + AGAIN_S
        self._due[run_id] = min(self._due.get(run_id, soon), soon)

    @property
    def late_s(self) -> float:
        """How long ago the run that waits for a look was due; 0 where none is."""
        return max(self._clock() - min(list(self._due.values()), default=float("inf")), 0.0)

    async def keep_judging(self) -> None:
        """Look at what is due, until it is cancelled. Whatever goes wrong is counted, and it goes on."""
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
        """Finish the look that is under way."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def _next(self) -> UUID:
        """The run that has been due for longest, when it is."""
        while True:
            if self._clock() - self._sought >= SEEK_S:
                self._sought = self._clock()
                await self._seek()
            due = list(self._due.items())
            run_id, when = min(due, key=lambda each: each[1], default=(None, 0.0))
            if run_id is not None and when <= self._clock():
                del self._due[run_id]
                return run_id
            await asyncio.sleep(POLL_S)

    async def _seek(self) -> None:
        """Note the runs that fell silent, before this process began too, and those that are due to be looked at."""
        restless = partial(self._store.restless, alerting=self._alerts is not None)
        try:
            found = await self._beside(restless)
        except StoreError:
            return
        found = [each for each in found if self._spared.get(each.run_id, 0.0) <= self._sought]
        for each in found:
            if each.due or self._silent.get(each.run_id) != each.silent_after:
                self.note(each.run_id)
        self._silent = {each.run_id: each.silent_after for each in found}

    async def _look(self, run_id: UUID) -> None:
        self._spared.pop(run_id, None)
        try:
            wait = await self._judge(run_id)
        except NotFound:
            return
        except (StoreError, QueueFull):
            wait = LATER_S
        except Exception as error:  # a damaged page, say: it is worth a word, and no more
            self._count(type(error).__name__, error)
            self._spared[run_id] = self._clock() + SPARED_S
            return
        if wait is not None:
            self._due.setdefault(run_id, self._clock() + wait)

    async def _judge(self, run_id: UUID) -> float | None:
        """Look at a run, and keep what is found; after how many seconds to look again, if at all."""
        case, found = await self._beside(lambda: self._examine(run_id))
        for rule, error in found.failed.items():
            self._count(rule, error)
        judgement = Judgement(found.verdict, found.severity, found.findings, case.version)
        keep = self._counted(lambda: self._store.keep(run_id, judgement, self._alerts))
        kept = await self._writer.run(keep)
        if kept.change is not None:
            self._bus.publish(Advance(*kept.change))
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
        """The same work, of which one is done at a time, with its processor time added to ``seconds``."""

        def counted() -> Result:
            begun = time.thread_time()
            try:
                return work()
            finally:
                self.seconds += time.thread_time() - begun

        return counted

    def _count(self, what: str, error: Exception) -> None:
        if not self.failed[what]:
            _log.warning("Runs are not judged by %s: this is said once.", what, exc_info=error)
        self.failed[what] += 1
