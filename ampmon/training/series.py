"""Writes the records of one source in order. Records with values still on a device wait for them.

Those that take long to decode are written on the thread of a `Reader`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeAlias

from ampmon import wire
from ampmon.wire.template import SteadyUpdates


Ready: TypeAlias = Callable[[], bool]
"""Whether all values of a record are on the host. Does not wait."""
Write: TypeAlias = Callable[[], None]
"""Writes a record. Waits for values that are not on the host yet."""
Count: TypeAlias = Callable[[], int]
"""How many records `Write` writes."""
_POLL_S = 0.005
_GRACE_S = 0.05
"""How long the end waits for a record at least: the state after a fused update may be requested 20 ms later."""


class Sink(Protocol):
    """What a stream writes to: the recorder of the process."""

    def write(
        self, stream: Stream, record: Callable[..., wire.Record], fields: dict[str, Any]
    ) -> None:
        """Number a record of this stream and write it."""

    def append(self, stream: Stream, encode: Callable[..., bytes], *values: object) -> bool:
        """Number a record of this stream and write ``encode(seq, time, *values)``. Return False if `write` must."""

    def later(self, work: Callable[[], None]) -> None:
        """Do work on another thread, after all earlier work."""

    def idle(self) -> bool:
        """Whether all work passed to `later` is done."""


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
        self._waiting: deque[tuple[Ready, Write, bool, Count]] = deque()

    @property
    def idle(self) -> bool:
        return not self._waiting and self._sink.idle()

    @property
    def waiting(self) -> int:
        """How many records wait for their values."""
        return sum(records() for *_, records in self._waiting)

    def submit(
        self, ready: Ready, write: Write, *, brief: bool = True, records: Count = lambda: 1
    ) -> None:
        """Write a record once its values are on the host, after those submitted before it. Does not wait.

        If they are there already, as on a CPU, ``write`` is called before this returns. Each later call checks the
        waiting records. It writes ready ones that are ``brief``, and leaves those that take longer than waking a thread
        to another thread.
        """
        self._waiting.append((ready, write, brief, records))  # first, as `ready` may raise
        if len(self._waiting) > 1 or not self._sink.idle():
            self.drain()
        elif ready():
            self._waiting.popleft()
            write()

    def end_update(self, ready: Ready, write: Write, *, brief: bool) -> None:
        """Submit an update's record and begin the next update."""
        self.ordinal += 1
        self.updating = False
        self.submit(ready, write, brief=brief)

    def drain(self) -> None:
        """Write the waiting records that are ready, in order, on this thread or another."""
        while self._waiting and self._waiting[0][0]():
            _, write, brief, _ = self._waiting.popleft()
            # Not before work that another thread has still to do, so that records stay in order.
            if brief and self._sink.idle():
                write()
            else:
                self._sink.later(write)

    def close(self, deadline: float, *, clock: Callable[[], float] = time.monotonic) -> int:
        """Write the waiting records until ``deadline``, a time of ``clock``, or for 50 ms. Return how many were lost.

        Polls, because with a device that hangs the process could otherwise never end. Does not raise.
        """
        lost, deadline = 0, max(deadline, clock() + _GRACE_S)
        while self._waiting:
            ready, write, _, records = self._waiting[0]
            try:
                if ready():
                    write()
                elif clock() < deadline:
                    time.sleep(_POLL_S)
                    continue
                else:
                    break
            except Exception:
                lost += records()
            self._waiting.popleft()
        lost += self.waiting
        self._waiting.clear()
        return lost

    def put(self, record: Callable[..., wire.Record], **fields: Any) -> None:
        """Write a record with the next seq. Even a record that cannot be kept uses one: a hole is a loss."""
        self._sink.write(self, record, fields)

    def put_steady(self, template: SteadyUpdates, *numbers: float) -> None:
        """Write a steady update with these numbers of `SteadyUpdates.encode`, as `put` would, but faster."""
        if not self._sink.append(self, template.encode, *numbers):
            self.put(wire.Update, **template.fields(*numbers))

    def event(self, kind: str, *, ordinal: int | None = None, **detail: Any) -> None:
        """Write an event; ``detail`` must be plain data."""
        self.put(wire.Event, kind=kind, ordinal=ordinal, detail=detail)

    def restart(self) -> Collection[object]:
        """Begin again as a stream of another attempt. Return the waiting records: the caller keeps them alive."""
        self.ordinal = self.seq = 0
        waiting, self._waiting = self._waiting, deque()
        return waiting


class Reader:
    """Runs work in the order of submission. Its thread starts with the first. Errors of the work are not raised.

    All submitted work is done when `done` equals ``handed``. Both only grow.
    """

    def __init__(
        self,
        failed: Callable[[str, BaseException], None],
        *,
        thread: str = "ampmon-reader",
        doing: str = "reading from the device",
    ) -> None:
        self.handed = 0
        self.done = 0
        self._failed = failed
        self._name = thread
        self._doing = doing
        # A signal handler may submit while this thread does: a SimpleQueue is reentrant.
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        """Submit work. Does not wait. Raises RuntimeError if no thread can start; the work stays submitted."""
        self.handed += 1
        self._queue.put(work)
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._read, name=self._name, daemon=True)
            thread.start()
            self._thread = thread

    @property
    def idle(self) -> bool:
        return self.done == self.handed

    def finish(self, deadline: float) -> None:
        """End the thread when its work is done. Waits at most until ``deadline``, a time of time.monotonic().

        Work submitted while no thread could start is done here.
        """
        self._queue.put(None)
        if self._thread is None:
            self._read()
        else:
            self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _read(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception as error:
                self._failed(self._doing, error)
            self.done += 1
