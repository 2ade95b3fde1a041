"""News of runs within the process: whoever listens learns that a run has moved on, never what is in it.

A notice may be late or merged with the next, and is only ever a reason to ask the store.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple
from uuid import UUID


INTERVAL_S = 0.1
PENDING_MAX = 4096


class Advance(NamedTuple):
    """A run has reached a version; ``step`` is its last one, if it has any."""

    run_id: UUID
    version: int
    step: int | None


class Bus:
    """Passes advances from any thread to listeners on event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._closed = False

    def publish(self, advance: Advance) -> None:
        """Tell all who listen. Does not wait for them; callable from any thread."""
        with self._lock:
            for listener in self._listeners:
                listener.offer(advance)

    def listen(self, runs: Collection[UUID] | None = None) -> Listener:
        """A listener to some runs, or to all; on a running event loop. Use it as a context manager."""
        listener = Listener(self, None if runs is None else frozenset(runs))
        with self._lock:
            self._listeners.add(listener)
            if self._closed:
                listener.end()
        return listener

    def forget(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End all listening, now and later."""
        with self._lock:
            self._closed = True
            for listener in self._listeners:
                listener.end()

    @property
    def closed(self) -> bool:
        return self._closed


class Listener:
    """What one listener has not been told yet: the newest advance of each run, and no more than that."""

    def __init__(self, bus: Bus, runs: frozenset[UUID] | None) -> None:
        self._bus = bus
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._pending: dict[UUID, Advance] = {}
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._bus.forget(self)

    def offer(self, advance: Advance) -> None:
        """Keep an advance for the next look. Called by the bus, from any thread."""
        if self._runs is not None and advance.run_id not in self._runs:
            return
        with self._lock:
            held = self._pending.get(advance.run_id)
            if held is not None and held.version >= advance.version:
                return
            if len(self._pending) >= PENDING_MAX:
                # Its next advance will be told; until then this listener is late for that run.
                del self._pending[next(iter(self._pending))]
            self._pending[advance.run_id] = advance
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)

    async def advances(self) -> AsyncIterator[list[Advance]]:
        """What is new, at most ten times a second, until the bus closes."""
        while True:
            await self._news.wait()
            if self._ended:
                return
            self._news.clear()
            with self._lock:
                told, self._pending = list(self._pending.values()), {}
            if told:
                yield told
                await asyncio.sleep(INTERVAL_S)
