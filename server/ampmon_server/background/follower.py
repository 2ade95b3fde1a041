"""Delivers to a bus what other server processes write to the same database: by notices, and by polling the store.

A lost notice costs only latency.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from ampmon_server.background.bus import INTERVAL_S, RUNS_KEPT_MAX, Bus
from ampmon_server.store.admin.notices import PostgresNotices
from ampmon_server.store.store import Store
from ampmon_server.store.streams.state import Advance


POLL_S = 1.0
OVERLAP_S = 120.0
"""How far back each poll reaches. A row's time is its writer's clock before the row becomes visible.

A transaction may contain many statements of up to 30 s each. Known runs in the overlap cost only the query.
"""
_IDLE_S = 5.0

_log = logging.getLogger(__name__)


class BusFollower:
    """A thread that delivers the writes of other processes to a bus, while the bus has listeners.

    It sends ``notices`` for what is published here. Received notices shorten the wait for what is published elsewhere.
    """

    def __init__(self, bus: Bus, store: Store, notices: PostgresNotices | None) -> None:
        self._bus = bus
        self._store = store
        self._notices = notices
        self._lock = threading.Lock()
        self._heard: dict[UUID, int] = {}
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self.trouble: str | None = None
        """Why advances of other processes do not arrive, or None if they do."""
        self._thread = threading.Thread(target=self._run, name="ampmon-follower", daemon=True)

    def start(self) -> None:
        if self._notices is not None:
            self._notices.listen(self._hear)
            self._bus.relay = self._relay
        self._thread.start()

    def close(self) -> None:
        """Send pending notices and stop. Close the bus first, because closing it wakes the thread."""
        self._stopping.set()
        self._wake.set()
        if self._notices is not None:
            self._notices.close()
        self._thread.join()

    @property
    def way(self) -> str:
        """How advances of other processes arrive now: `notices`, or `polling` alone."""
        return "notices" if self._notices and self._notices.trouble is None else "polling"

    def _relay(self, advance: Advance) -> None:
        assert self._notices is not None
        self._notices.send(advance.run_id, advance.version)

    def _hear(self, run_id: UUID, version: int) -> None:
        """Remember the run of a notice for the next read. Called from the notices' own thread."""
        if not self._bus.wants(run_id, version):
            return
        with self._lock:
            if len(self._heard) < RUNS_KEPT_MAX:  # polling finds the others
                self._heard[run_id] = version
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._bus.wait_for_listeners(_IDLE_S) and not self._bus.closed:
                self._follow()
            elif self._bus.closed:
                return

    def _follow(self) -> None:
        asked = time.time()
        while self._bus.wait_for_listeners(0) and not self._stopping.is_set():
            began = time.time()
            since = round((asked - OVERLAP_S) * 1e6)
            if self._deliver(partial(self._store.changes_since, since)):
                asked = began
            self._attend(time.monotonic() + POLL_S)
        self.trouble = None  # nobody is waiting, so past trouble no longer matters

    def _attend(self, until: float) -> None:
        """Until ``until``, read the runs that notices name, at most once per `INTERVAL_S`."""
        while (left := until - time.monotonic()) > 0 and not self._stopping.is_set():
            if not self._wake.wait(left):
                return
            # Before the notices are taken: one that comes between sets it again.
            self._wake.clear()
            with self._lock:
                heard, self._heard = list(self._heard), {}
            self._deliver(partial(self._store.changes_of, heard))
            self._stopping.wait(INTERVAL_S)

    def _deliver(self, ask: Callable[[], Sequence[Advance]]) -> bool:
        """Deliver the changes that ``ask`` reads. Return whether the read succeeded."""
        try:
            for change in ask():
                self._bus.deliver(change)
        except Exception as error:  # any kind: an uncaught error would end this thread unnoticed
            if self.trouble is None:
                _log.warning("Pages show updates from other server processes late: %s", error)
            self.trouble = str(error)
            return False
        self.trouble = None
        return True
