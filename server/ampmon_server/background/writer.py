"""The threads that write: whoever has something to store waits in line, or is sent away when the line is long."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar


WAITING_MAX = 256
"""Each waits with its batch, of a few kB where many send what has just happened. Fewer would leave writers idle while
those sent away wait to come again."""

WAITING_BYTES_MAX = 64 * 2**20
"""Of all bodies together, those included that still arrive. One alone always has room."""

WAITING_S = 20.0
"""Whoever has stood in line for so long is sent away: a sender gives up after 30 s, and would come twice."""

FAILURE_S = 60.0
"""For so long a write that failed speaks for the next ones: a sender tries again every 30 s at most."""

TOGETHER_MAX = 64
TOGETHER_BYTES_MAX = 2 * 2**20
"""Of one transaction: whoever is first in line waits for all of it."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFull(Exception):
    """Too many are waiting to write."""


class LastWrite:
    """Whether the last batch could be written; one that held nothing new does not count. ``clock`` gives seconds.

    May be used by any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it could not, a while ago at most: nobody may send to a server that is not ready."""
        return self._failed is not None and self._clock() < self._failed + FAILURE_S

    def note(self, *, failed: bool) -> None:
        """Note how a write went."""
        self._failed = self._clock() if failed else None


class Room:
    """What one body takes of the bytes that may wait."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.size = 0

    def grow(self, size: int) -> None:
        """Take so many bytes more. Raises LineTooLong where others have taken them."""
        self._writer.take(size, alone=self.size)
        self.size += size


class Writer:
    """Runs one function after another, or as many at a time as it has ``threads``, off the event loop.

    Its own state belongs to the event loop. ``clock`` gives seconds.
    """

    def __init__(self, threads: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="ampmon-writer")
        self._waiting = 0
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Who stands in line now, whoever is being served included."""
        return self._waiting

    @property
    def waiting_bytes(self) -> int:
        """Of their bodies, and of those that still arrive."""
        return self._bytes

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Room for a body, given back at the end. Raises LineTooLong where too many wait already."""
        if self._waiting >= WAITING_MAX:
            raise QueueFull
        room = Room(self)
        try:
            yield room
        finally:
            self._bytes -= room.size

    def take(self, size: int, *, alone: int) -> None:
        """Take bytes for a body that has ``alone`` so far. Raises LineTooLong."""
        if self._bytes > alone and self._bytes + size > WAITING_BYTES_MAX:
            raise QueueFull
        self._bytes += size

    async def run(self, function: Callable[[], Result]) -> Result:
        """Its result, or what it raised. Raises LineTooLong, without running it, when too many wait, or it too long."""
        if self._waiting >= WAITING_MAX:
            raise QueueFull
        deadline = self._clock() + WAITING_S

        def turn() -> Result:
            if self._clock() > deadline:
                raise QueueFull
            return function()

        self._waiting += 1
        try:
            # With the request's context, in which its id stands: an executor's threads have none of their own.
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: context.run(turn)
            )
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Finish what is under way, and take no more."""
        self._executor.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True, eq=False)
class Place(Generic[Item, Result]):
    """One who waits with so many bytes; ``outcome`` is None until the work is done."""

    item: Item
    size: int
    outcome: Result | Exception | None = None


class WriteQueue(Generic[Item, Result]):
    """Those who wait for the same work: whoever's turn it is has it done for those behind too, as far as they fit.

    With several of a writer's threads ``most`` must be 1: each turn is then for one.
    """

    def __init__(self, writer: Writer, most: int = TOGETHER_MAX) -> None:
        self._writer = writer
        self._most = most
        self._waiting: deque[Place[Item, Result]] = deque()

    async def wait(
        self,
        item: Item,
        size: int,
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    ) -> Result:
        """What came of an item of so many bytes. Raises LineTooLong as the writer does.

        ``work`` gives for each item what came of it, or what is raised here; what it raises is raised for all.
        """
        place: Place[Item, Result] = Place(item, size)
        self._waiting.append(place)
        try:
            return await self._writer.run(lambda: self._turn(place, work))
        except QueueFull:
            if place in self._waiting:
                self._waiting.remove(place)
            raise

    def _turn(
        self,
        place: Place[Item, Result],
        work: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    ) -> Result:
        if place.outcome is None:
            taken = self._take(place)
            try:
                outcomes = work([each.item for each in taken])
            except Exception as error:
                outcomes = [error] * len(taken)
            for each, outcome in zip(taken, outcomes, strict=True):
                each.outcome = outcome
        assert place.outcome is not None
        if isinstance(place.outcome, Exception):
            raise place.outcome
        return place.outcome

    def _take(self, place: Place[Item, Result]) -> list[Place[Item, Result]]:
        """Take a place out of the line, and those behind it as far as they fit."""
        self._waiting.remove(place)
        taken, size = [place], place.size
        while self._waiting and len(taken) < self._most:
            size += self._waiting[0].size
            if size > TOGETHER_BYTES_MAX:
                break
            taken.append(self._waiting.popleft())
        return taken
