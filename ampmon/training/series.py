"""Writes the records of one source in order. Records with values still on a device wait for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ampmon import wire


_POLL_S = 0.005


class Sink(Protocol):
    """What a stream writes to: the recorder of the process."""

    def write(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        """Number a record of this stream and write it."""

    def later(self, work: Callable[[], None]) -> None:
        """Do work on another thread, after all earlier work."""

    def idle(self) -> bool:
        """Whether all work passed to `later` is done."""


class Deferred(Protocol):
    """A record with values that may still be on their way from a device."""

    @property
    def brief(self) -> bool:
        """Whether writing it takes no longer than waking a thread to do so."""

    def ready(self) -> bool:
        """Whether `write` would not wait."""

    def write(self) -> None:
        """Write the record."""


class Awaited(Protocol):
    """A value that may still be on its way from a device."""

    def ready(self) -> bool:
        """Whether it is on the host. Does not wait."""


@dataclass(slots=True)
class DeferredWrite:
    """A `Deferred` that calls ``write`` once all that it waits for is on the host."""

    awaited: Sequence[Awaited]
    write: Callable[[], None]
    brief: bool = True

    def ready(self) -> bool:
        return all(each.ready() for each in self.awaited)


class Stream:
    """The source of a series of records: a scaler of this process or, with an empty name, the process itself."""

    def __init__(self, sink: Sink, name: str) -> None:
        self.name = name
        self._sink = sink
        self.ordinal = 0
        """Ordinal of the next update."""
        self.updating = False
        """Whether `scale()` was called since the last update."""
        self.seq = 0
        self._waiting: deque[Deferred] = deque()

    @property
    def idle(self) -> bool:
        return not self._waiting and self._sink.idle()

    def submit(self, record: Deferred) -> None:
        """Write a record once its values are on the host, after those submitted before it. Does not wait.

        If they are there already, as on a CPU, it is written before this returns. Each later call checks the waiting
        records: it writes ready ones that are brief, and leaves others to another thread.
        """
        if self.idle and record.ready():
            record.write()
        else:
            self._waiting.append(record)
            self.drain()

    def end_update(self, record: Deferred) -> None:
        """Submit an update's record and begin the next update."""
        self.ordinal += 1
        self.updating = False
        self.submit(record)

    def drain(self) -> None:
        """Write the waiting records that are ready, in order, on this thread or another."""
        while self._waiting and self._waiting[0].ready():
            record = self._waiting.popleft()
            if record.brief and self._sink.idle():
                record.write()
            else:
                self._sink.later(record.write)

    def close(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> int:
        """Write the waiting records until ``deadline``, a time of ``clock``. Return how many were lost.

        Polls, because with a device that hangs the process could otherwise never end. Does not raise.
        """
        lost = 0
        while self._waiting:
            record = self._waiting[0]
            try:
                if record.ready():
                    record.write()
                elif clock() < deadline:
                    time.sleep(_POLL_S)
                    continue
                else:
                    break
            except Exception:
                lost += 1
            self._waiting.popleft()
        lost += len(self._waiting)
        self._waiting.clear()
        return lost

    def put(self, record: Callable[..., wire.Record], **fields: Any) -> None:
        """Write a record with the next seq. Even a record that cannot be kept uses one: a hole is a loss."""
        self._sink.write(self, record, fields)

    def event(self, kind: str, *, ordinal: int | None = None, **detail: Any) -> None:
        """Write an event; ``detail`` must be plain data."""
        self.put(wire.Event, kind=kind, ordinal=ordinal, detail=detail)

    def restart(self) -> Collection[Deferred]:
        """Begin again as a stream of another attempt. Return the waiting records: the caller keeps them alive."""
        self.ordinal = self.seq = 0
        waiting, self._waiting = self._waiting, deque()
        return waiting
