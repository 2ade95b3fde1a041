"""Delivers to a bus what other server processes write to the same database, by polling it."""

from __future__ import annotations

import logging
import threading
import time

from ampmon_server.background.bus import Bus
from ampmon_server.store.store import Store


POLL_S = 0.5
OVERLAP_S = 120.0
"""How far back each poll reaches. A row's time is its writer's clock before the row becomes visible.

A transaction may contain many statements of up to 30 s each. Known runs in the overlap cost only the query.
"""
_IDLE_S = 5.0

_log = logging.getLogger(__name__)


class BusFollower:
    """A thread that delivers the writes of other processes to a bus, while the bus has listeners."""

    def __init__(self, bus: Bus, store: Store) -> None:
        self._bus = bus
        self._store = store
        self._stopping = threading.Event()
        self.trouble: str | None = None
        """Why advances of other processes do not arrive, or None if they do."""
        self._thread = threading.Thread(target=self._run, name="ampmon-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait until the thread ends. Close the bus first, which ends it without another query."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._bus.closed:
            if self._bus.wait_for_listeners(_IDLE_S):
                self._follow()

    def _follow(self) -> None:
        asked = time.time()
        while self._bus.wait_for_listeners(0) and not self._bus.closed:
            began = time.time()
            if self._deliver(since=round((asked - OVERLAP_S) * 1e6)):
                asked = began
            self._stopping.wait(POLL_S)
        self.trouble = None  # nobody is waiting, so past trouble no longer matters

    def _deliver(self, since: int) -> bool:
        """Deliver the changes at or after ``since``. Return whether they could be read."""
        try:
            for change in self._store.changes_since(since):
                self._bus.publish(change)
        except Exception as error:  # any kind: an uncaught error would end this thread unnoticed
            if self.trouble is None:
                _log.warning("Pages show updates from other server processes late: %s", error)
            self.trouble = str(error)
            return False
        self.trouble = None
        return True
