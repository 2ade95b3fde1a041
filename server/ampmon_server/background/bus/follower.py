"""Brings the news of other server processes on the same database: by notices, and by asking the store in any case.

A notice that gets lost costs latency only. Knows no engine and no statement.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from ampmon_server.background.bus.local import INTERVAL_S, RUNS_KEPT_MAX, Advance, Bus
from ampmon_server.store import Change, Store


POLL_S = 1.0
OVERLAP_S = 120.0
"""How far back it asks: a row's time is its writer's clock at the start of the transaction, not when it is seen.

A transaction may take many statements of up to 30 s each; runs that are known already cost nothing but the asking.
"""
_IDLE_S = 5.0

_log = logging.getLogger(__name__)


class NoticeCarrier(Protocol):
    """What carries (run, version) from process to process, as `ampmon_server.store.admin.notices` does."""

    def listen(self, hear: Callable[[UUID, int], None]) -> None: ...

    def send(self, run_id: UUID, version: int) -> None: ...

    def close(self) -> None: ...

    @property
    def trouble(self) -> str | None: ...


class BusFollower:
    """A thread that delivers to a bus what other processes have written, while anybody listens there.

    ``notices`` are sent for what is published here, and shorten the wait for what is published elsewhere.
    """

    def __init__(self, bus: Bus, store: Store, notices: NoticeCarrier | None) -> None:
        self._bus = bus
        self._store = store
        self._notices = notices
        self._lock = threading.Lock()
        self._heard: dict[UUID, int] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="ampmon-follower", daemon=True)

    def start(self) -> None:
        if self._notices is not None:
            self._notices.listen(self._hear)
            self._bus.relay = self._relay
        self._thread.start()

    def close(self) -> None:
        """Send what waits to be sent, and stop. The bus is to be closed before, for that wakes the thread."""
        self._stopping.set()
        self._wake.set()
        if self._notices is not None:
            self._notices.close()
        self._thread.join()

    @property
    def trouble(self) -> str | None:
        """Why news of others do not come; None where they do."""
        return self._trouble

    @property
    def way(self) -> str:
        """How news of others come now: `notices`, or `polling` alone."""
        return "notices" if self._notices and self._notices.trouble is None else "polling"

    def _relay(self, advance: Advance) -> None:
        assert self._notices is not None
        self._notices.send(advance.run_id, advance.version)

    def _hear(self, run_id: UUID, version: int) -> None:
        """Keep what a notice says for the next look. Called from the notices' own thread."""
        if not self._bus.wants(run_id, version):
            return
        with self._lock:
            if len(self._heard) < RUNS_KEPT_MAX:  # the others are polled for
                self._heard[run_id] = version
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._bus.wait_for_listeners(_IDLE_S) and not self._bus.closed:
                self._follow()
            elif self._bus.closed:
                return

    def _follow(self) -> None:
        """Ask again and again, as long as anybody listens."""
        asked = time.time()
        while self._bus.wait_for_listeners(0) and not self._stopping.is_set():
            began = time.time()
            since = round((asked - OVERLAP_S) * 1e6)
            if self._deliver(partial(self._store.changes_since, since)):
                asked = began
            self._attend(time.monotonic() + POLL_S)
        self._trouble = None  # of what nobody waits for

    def _attend(self, until: float) -> None:
        """Look at once, but not too often, for the runs that notices name."""
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            if not self._wake.wait(left):
                return
            self._wake.clear()
            with self._lock:
                heard, self._heard = list(self._heard), {}
            self._deliver(partial(self._store.changes_of, heard))
            self._stopping.wait(INTERVAL_S)

    def _deliver(self, ask: Callable[[], Sequence[Change]]) -> bool:
        """Pass on what the store answers; whether it did."""
        try:
            for change in ask():
                self._bus.deliver(Advance(*change))
        except Exception as error:  # of any kind, for nobody would see that this thread has ended
            if self._trouble is None:
                _log.warning("Pages learn late of other server processes' updates: %s", error)
            self._trouble = str(error)
            return False
        self._trouble = None
        return True
