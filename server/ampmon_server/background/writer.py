"""Runs writes on threads. Requests that write wait in a bounded queue, and are rejected when it is full."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar


WAITING_MAX = 256
"""Requests that may wait, each with a batch of a few kB. With fewer, writers idle while rejected clients wait."""

WAITING_BYTES_MAX = 64 * 2**20
"""Total size of the waiting request bodies, including those still arriving. A single body always fits."""

WAITING_S = 20.0
"""A request that waited this long is rejected. A sender gives up after 30 s and would then send the batch twice."""

FAILURE_S = 60.0
"""How long a failed write marks the server as not ready. A sender retries after at most 30 s."""

TOGETHER_MAX = 64
TOGETHER_BYTES_MAX = 2 * 2**20
"""Limits of one transaction, in items and bytes. The first in the queue waits for all of it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFull(Exception):
    """The write queue is full, or a request waited in it for too long."""


class LastWrite:
    """Whether the last write of a batch failed. Batches without new records do not count. ``clock`` returns seconds.

    Thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the last write failed, at most `FAILURE_S` ago.

        The failure expires, because no client may send to a server that is not ready, so no write would clear it.
        """
        return self._failed is not None and self._clock() < self._failed + FAILURE_S

    def note(self, *, failed: bool) -> None:
        """Record whether a write failed."""
        self._failed = self._clock() if failed else None


class Writer:
    """Runs functions off the event loop, on ``threads`` threads: one at a time by default.

    Its own state belongs to the event loop. ``clock`` returns seconds.
    """

    def __init__(self, threads: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ampmon-writer")
        self.waiting = 0
        """Requests in the queue, including those being written."""
        self.waiting_bytes = 0
        """Total size of the waiting bodies, including those still arriving."""

    @contextmanager
    def room(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes for a body until the block ends, so that bodies together stay bounded.

        It raises QueueFull if other bodies hold the bytes, and so does this call if too many requests wait.
        """
        if self.waiting >= WAITING_MAX:
            raise QueueFull
        held = 0

        def grow(size: int) -> None:
            nonlocal held
            if self.waiting_bytes > held and self.waiting_bytes + size > WAITING_BYTES_MAX:
                raise QueueFull
            self.waiting_bytes += size
            held += size

        try:
            yield grow
        finally:
            self.waiting_bytes -= held

    async def run(self, function: Callable[[], Result]) -> Result:
        """Run ``function`` on a writer thread. Return its result or raise its exception.

        Raises QueueFull, without running it, if too many requests wait or this one waited too long.
        """
        if self.waiting >= WAITING_MAX:
            raise QueueFull
        deadline = self._clock() + WAITING_S

        def turn() -> Result:
            if self._clock() > deadline:
                raise QueueFull
            return function()

        self.waiting += 1
        try:
            # Carry over the request's context, which holds its id: executor threads do not inherit it.
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: context.run(turn)
            )
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """Finish the current work and cancel the rest of the queue."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True, eq=False)
class Place(Generic[Item, Result]):
    """A waiting item and its size in bytes. ``outcome`` is None until the work is done."""

    item: Item
    size: int
    outcome: Result | Exception | None = None


class WriteQueue(Generic[Item, Result]):
    """Batches items that wait for the same work: the first one to run also does the work of those behind it.

    If the writer has several threads, ``most`` must be 1, so that each run handles one item.
    """

    def __init__(self, writer: Writer, most: int = TOGETHER_MAX) -> None:
        self._writer = writer
        self._most = most
        # Writer threads take places, and the event loop removes those that waited too long.
        self._lock = threading.Lock()
        self._waiting: deque[Place[Item, Result]] = deque()

    async def wait(
        self,
        item: Item,
        size: int,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    ) -> Result:
        """Return the result for an item of ``size`` bytes. Raises QueueFull as `Writer.run` does.

        ``work`` returns a result, or an exception to raise here, for each item. An exception that it raises is raised
        for all.
        """
        place: Place[Item, Result] = Place(item, size)
        self._waiting.append(place)
        try:
            await self._writer.run(lambda: self._turn(place, work))
        except QueueFull:
            with self._lock, suppress(ValueError):
                self._waiting.remove(place)
            if place.outcome is None:  # else an earlier item's run did the work, and took long
                raise
        assert place.outcome is not None
        if isinstance(place.outcome, Exception):
            raise place.outcome
        return place.outcome

    def _turn(
        self,
        place: Place[Item, Result],
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    ) -> None:
        if place.outcome is None:
            taken = self._take(place)
            try:
                outcomes = work([each.item for each in taken])
            except Exception as error:
                outcomes = [error] * len(taken)
            for each, outcome in zip(taken, outcomes, strict=True):
                each.outcome = outcome

    def _take(self, place: Place[Item, Result]) -> list[Place[Item, Result]]:
        """Remove a place from the queue, and those behind it up to the limits."""
        with self._lock:
            self._waiting.remove(place)
            taken, size = [place], place.size
            while self._waiting and len(taken) < self._most:
                size += self._waiting[0].size
                if size > TOGETHER_BYTES_MAX:
                    break
                taken.append(self._waiting.popleft())
            return taken
