"""A series of records from one source, in order: those whose values are still on the device wait for their turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
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
        """Do work off the calling thread, behind what was handed in before."""

    def idle(self) -> bool:
        """Whether all that was handed in is done."""


class Deferred(Protocol):
    """A record some of whose values may still be on their way from the device."""

    @property
    def brief(self) -> bool:
        """Whether writing it takes no longer than it takes to wake a thread that would."""

    def ready(self) -> bool:
        """Whether `write` would not wait."""

    def write(self) -> None:
        """Write the record."""


class Stream:
    """Where one series of records comes from: a scaler of this process, or, with an empty name, the process itself."""

    def __init__(self, sink: Sink, name: str) -> None:
        self.name = name
        self._sink = sink
        self.ordinal = 0
        """Ordinal of the next update."""
        self.updating = False
        """Whether the next update has begun: `scale()` was called since the last one."""
        self.seq = 0
        self._waiting: deque[Deferred] = deque()

    @property
    def idle(self) -> bool:
        """Whether no record waits."""
        return not self._waiting and self._sink.idle()

    def submit(self, record: Deferred) -> None:
        """Write a record as soon as its values are on the host, behind those submitted before it. Does not wait.

        One that is on the host already, as from a CPU, is written when this returns. Others are looked for at each
        call, and written by it where they are brief, else by another thread.
        """
        if self.idle and record.ready():
            record.write()
        else:
            self._waiting.append(record)
            self.drain()

    def end_update(self, record: Deferred) -> None:
        """Submit the record of an update, which has ended: the next one has the next ordinal."""
        self.ordinal += 1
        self.updating = False
        self.submit(record)

    def drain(self) -> None:
        """Have the waiting records that are ready written, in order."""
        while self._waiting and self._waiting[0].ready():
            record = self._waiting.popleft()
            if record.brief and self._sink.idle():
                record.write()
            else:
                self._sink.later(record.write)

    def close(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> int:
        """Write the waiting records until ``deadline``, a time of ``clock``; how many could not be.

        Polls, for a device that hangs is not to be waited for: the process could then never end. Does not raise.
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
        """Write a record with the next seq. A seq is spent even where the record cannot be kept: a hole is a loss."""
        self._sink.write(self, record, fields)

    def event(self, kind: str, *, ordinal: int | None = None, **detail: Any) -> None:
        """Write an event; ``detail`` must be plain data."""
        self.put(wire.Event, kind=kind, ordinal=ordinal, detail=detail)

    def restart(self) -> Collection[Deferred]:
        """Begin again as a stream of another attempt; returns the records that waited, for who must keep them alive."""
        self.ordinal = self.seq = 0
        waiting, self._waiting = self._waiting, deque()
        return waiting
