"""Delivers to a bus what other server processes write to the same database, by polling it."""

from __future__ import annotations

import asyncio
import logging
import time

from ampmon_server.background.bus import Bus
from ampmon_server.store.store import Store


POLL_S = 0.5
OVERLAP_S = 120.0
"""How far back each poll reaches. A row's time is its writer's clock before the row becomes visible.

A transaction may contain many statements of up to 30 s each. Known runs in the overlap cost only the query.
"""
_log = logging.getLogger(__name__)


class BusFollower:
    """Delivers the writes of other processes to a bus, while the bus has listeners."""

    def __init__(self, bus: Bus, store: Store) -> None:
        self._bus = bus
        self._store = store
        self.trouble: str | None = None
        """Why advances of other processes do not arrive, or None if they do."""

    async def keep_following(self) -> None:
        """Poll until cancelled."""
        asked = time.time()
        while True:
            began = time.time()
            try:
                if self._bus.listeners:
                    await asyncio.to_thread(self._deliver, round((asked - OVERLAP_S) * 1e6))
            except Exception as error:  # any kind: an uncaught error would end the task unnoticed
                if self.trouble is None:
                    _log.warning("Pages show updates from other server processes late: %s", error)
                self.trouble = str(error)
            else:
                asked, self.trouble = began, None  # past trouble does not matter if nobody listens
            await asyncio.sleep(POLL_S)

    def _deliver(self, since: int) -> None:
        for change in self._store.changes_since(since):
            self._bus.publish(change)
