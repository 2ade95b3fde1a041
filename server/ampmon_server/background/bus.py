"""Notifies listeners that a run has advanced, without saying what changed, from any thread and any server process.

A notice may be late or merged with the next one. Treat it only as a reason to read the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator
from itertools import takewhile
from uuid import UUID

from anyio import move_on_after

from ampmon_server.store.streams.state import Advance


INTERVAL_S = 0.05
NOTICES_PER_S = 200
"""Limit for all listeners together. With many listeners each is notified less often, which leaves time for ingest."""
QUIET_S = 15.0
"""After this long without an advance, a listener yields an empty list, so that its client sees it is alive."""
RUNS_KEPT_MAX = 16_384
"""Runs whose newest advance is kept. A listener that falls further behind misses advances of other runs."""


class Bus:
    """Passes advances to the listeners in this process, unless the newest of the run is the same.

    All listeners share one record of the newest advances, so delivery costs the same for any number of listeners.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[BusListener] = set()
        self._waiting: set[BusListener] = set()
        self._delivered = 0
        self._newest: OrderedDict[UUID, tuple[int, Advance]] = OrderedDict()
        self.closed = False

    def publish(self, advance: Advance) -> None:
        """Notify all listeners, unless the run's last advance was the same. Does not wait for them. Thread-safe."""
        with self._lock:
            # Not only higher versions: after a failover that lost commits, a run has a lower one.
            if self._newest.get(advance.run_id, (0, None))[1] == advance:
                return
            self._delivered += 1
            self._newest[advance.run_id] = self._delivered, advance
            self._newest.move_to_end(advance.run_id)
            if len(self._newest) > RUNS_KEPT_MAX:
                self._newest.popitem(last=False)
            for listener in [each for each in self._waiting if each.wants(advance.run_id)]:
                self._waiting.remove(listener)
                listener.wake()

    def since(self, heard: int, listener: BusListener) -> tuple[int, list[Advance]]:
        """Return the number of the last advance, and those after ``heard`` that a listener wants, oldest first.

        If there are none, the next wanted advance wakes the listener.
        """
        with self._lock:
            entries: Iterator[tuple[int, Advance]]
            if listener.runs is None:
                # In order of number, so reading backwards ends at the first one that was heard.
                entries = takewhile(lambda each: each[0] > heard, reversed(self._newest.values()))
            else:
                found = filter(None, map(self._newest.get, listener.runs))
                entries = (each for each in found if each[0] > heard)
            advances = [advance for _, advance in sorted(entries)]
            if not advances:
                self._waiting.add(listener)
            return self._delivered, advances

    def listen(self, runs: Collection[UUID] | None = None) -> BusListener:
        """Return a listener to ``runs``, or to all runs. Needs a running event loop. Use it as a context manager."""
        with self._lock:
            listener = BusListener(self, None if runs is None else frozenset(runs), self._delivered)
            self._listeners.add(listener)
        return listener

    def forget(self, listener: BusListener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            self._waiting.discard(listener)

    def close(self) -> None:
        """End all listeners, current and future."""
        with self._lock:
            self.closed = True
            for listener in self._listeners:
                listener.wake()

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def interval_s(self) -> float:
        """How long a listener pauses after a notification."""
        return max(INTERVAL_S, len(self._listeners) / NOTICES_PER_S)


class BusListener:
    """Receives the advances of ``runs``, or of all runs if None. ``heard`` is the number of the last one seen."""

    def __init__(self, bus: Bus, runs: frozenset[UUID] | None, heard: int) -> None:
        self.runs = runs
        self._bus = bus
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def __enter__(self) -> BusListener:
        return self

    def __exit__(self, *_: object) -> None:
        self._bus.forget(self)

    def wants(self, run_id: UUID) -> bool:
        return self.runs is None or run_id in self.runs

    def wake(self) -> None:
        """Called by the bus, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def advances(self, quiet_s: float = QUIET_S) -> AsyncIterator[list[Advance]]:
        """Yield new advances, at most twenty times a second, until the bus closes.

        Yields an empty list after ``quiet_s`` without one.
        """
        while not self._bus.closed:
            # Before the look: an advance that comes between ends the wait below at once.
            self._woken.clear()
            self._heard, news = self._bus.since(self._heard, self)
            if not news:
                # asyncio.wait_for loses a cancellation that arrives together with an advance.
                with move_on_after(quiet_s) as patience:
                    await self._woken.wait()
                if not patience.cancelled_caught:
                    continue
            yield news
            if news:
                await asyncio.sleep(self._bus.interval_s)
