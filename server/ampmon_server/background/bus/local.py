"""News of runs within the process: from any thread to listeners on event loops. Knows no other process."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection
from typing import NamedTuple
from uuid import UUID

from anyio import move_on_after


INTERVAL_S = 0.05
TELLINGS_PER_S = 500
"""To all listeners together: where there are many, each is told less often, so that ingest keeps its time."""
QUIET_S = 15.0
"""After so long without news a listener is handed none, to show whoever it serves that it is there."""
PENDING_MAX = 4096
TOLD_MAX = 16_384
"""Of so many runs it is known what was told last."""


class Advance(NamedTuple):
    """A run has reached a version; ``step`` is its last one, if it has any."""

    run_id: UUID
    version: int
    step: int | None


def _nobody(advance: Advance) -> None:
    """What is called where there are no other processes."""


class Bus:
    """Passes advances on to those who listen in this process, each version of a run once.

    ``relay`` is called with what this process publishes itself: it tells other processes, and does not block.
    """

    def __init__(self) -> None:
        self.relay: Callable[[Advance], None] = _nobody
        self._lock = threading.Lock()
        self._listeners: set[BusListener] = set()
        self._told: OrderedDict[UUID, int] = OrderedDict()
        self._occupied = threading.Event()
        self._closed = False

    def publish(self, advance: Advance) -> None:
        """Tell all who listen, here and elsewhere. Does not wait for them; callable from any thread."""
        self.deliver(advance)
        self.relay(advance)

    def deliver(self, advance: Advance) -> None:
        """Tell all who listen in this process, unless they know."""
        with self._lock:
            if self._told.get(advance.run_id, -1) >= advance.version:
                return
            self._told[advance.run_id] = advance.version
            self._told.move_to_end(advance.run_id)
            if len(self._told) > TOLD_MAX:
                self._told.popitem(last=False)
            for listener in self._listeners:
                listener.offer(advance)

    def wants(self, run_id: UUID, version: int) -> bool:
        """Whether anybody here would be told of this version."""
        with self._lock:
            return self._told.get(run_id, -1) < version and any(
                listener.wants(run_id) for listener in self._listeners
            )

    def listen(self, runs: Collection[UUID] | None = None) -> BusListener:
        """A listener to some runs, or to all; on a running event loop. Use it as a context manager."""
        listener = BusListener(self, None if runs is None else frozenset(runs))
        with self._lock:
            self._listeners.add(listener)
            self._occupied.set()
            if self._closed:
                listener.end()
        return listener

    def forget(self, listener: BusListener) -> None:
        with self._lock:
            self._listeners.discard(listener)
            if not self._listeners and not self._closed:
                self._occupied.clear()

    def close(self) -> None:
        """End all listening, now and later."""
        with self._lock:
            self._closed = True
            self._occupied.set()
            for listener in self._listeners:
                listener.end()

    def wait_for_listeners(self, timeout_s: float) -> bool:
        """Block until somebody listens, or the bus closes; whether that is so."""
        return self._occupied.wait(timeout_s)

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    @property
    def interval_s(self) -> float:
        """How long a listener rests after it has been told."""
        return max(INTERVAL_S, len(self._listeners) / TELLINGS_PER_S)

    @property
    def closed(self) -> bool:
        return self._closed


class BusListener:
    """What one listener has not been told yet: the newest advance of each run, and no more than that."""

    def __init__(self, bus: Bus, runs: frozenset[UUID] | None) -> None:
        self._bus = bus
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._pending: dict[UUID, Advance] = {}
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> BusListener:
        return self

    def __exit__(self, *_: object) -> None:
        self._bus.forget(self)

    def wants(self, run_id: UUID) -> bool:
        return self._runs is None or run_id in self._runs

    def offer(self, advance: Advance) -> None:
        """Keep an advance for the next look. Called by the bus, from any thread."""
        if not self.wants(advance.run_id):
            return
        with self._lock:
            held = self._pending.get(advance.run_id)
            if held is not None and held.version >= advance.version:
                return
            if len(self._pending) >= PENDING_MAX:
                # Its next advance will be told; until then this listener is late for that run.
                del self._pending[next(iter(self._pending))]
            first = not self._pending
            self._pending[advance.run_id] = advance
        if first:  # else it has been woken, and has not looked yet
            self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    async def advances(self, quiet_s: float = QUIET_S) -> AsyncIterator[list[Advance]]:
        """What is new, at most twenty times a second, until the bus closes; nothing, where that is so for long."""
        while True:
            with move_on_after(
                quiet_s
            ):  # asyncio.wait_for loses a cancellation that comes with the news
                await self._news.wait()
            if self._ended:
                return
            self._news.clear()
            with self._lock:
                told, self._pending = list(self._pending.values()), {}
            yield told
            if told:
                await asyncio.sleep(self._bus.interval_s)
