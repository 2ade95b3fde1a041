"""Decodes and writes values that arrived from a device on a thread of its own, so the training thread need not."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable


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
