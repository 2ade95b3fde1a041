"""Decodes and writes what has come from a device, on a thread of its own, so that the training thread need not."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable


class Reader:
    """Does work in the order in which it is handed in. Its thread starts with the first; it raises nothing.

    What was handed in is done when `done` equals ``handed``; both only grow.
    """

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self.handed = 0
        self.done = 0
        self._failed = failed
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Hand in work. Does not wait."""
        self.handed += 1
        self._queue.put(work)
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="ampmon-reader", daemon=True)
            self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether all that was handed in is done."""
        return self.done == self.handed

    def finish(self, deadline: float) -> None:
        """End the thread when its work is done; waits until ``deadline``, a time of time.monotonic()."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _read(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except Exception as error:
                self._failed("reading from the device", error)
            self.done += 1
