"""Writes to a disk that is slow, remote or refuses, through memory and a background thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


POLL_S = 0.02
"""How often the thread writes. A killed process loses what came since."""
RING_BYTES = 2 * 2**20
"""Bytes that may wait before room counts as full. At most twice as many ever wait."""
SLOW_S = 0.005
"""A write that takes this long is slow."""
_ENTRY_BYTES = 300
"""Memory that an entry takes beside its payload."""
_RETRY_MIN_S, _RETRY_MAX_S = 0.1, 1.0
_STUCK_S = 1.0


class Relay:
    """Performs writes in order on a daemon thread, retrying each until it succeeds.

    One thread at a time may `put`, which makes no system call while the thread runs. ``quick`` counts the latest writes
    in a row that were neither slow nor refused. ``problem`` says why the last one was refused, or is None. ``clock``
    times them, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.quick = 0
        self.problem: str | None = None
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        # Only one thread changes each of the two.
        self._came_bytes = self._went_bytes = 0
        self._began_s: float | None = None
        """When the write in progress began."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def used(self) -> int:
        """Bytes waiting in memory."""
        return self._came_bytes - self._went_bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def stuck(self) -> bool:
        """Whether a write began over `_STUCK_S` ago and has not returned."""
        began_s = self._began_s
        return began_s is not None and self._clock() - began_s >= _STUCK_S

    def put(self, write: Callable[[], None], size: int) -> bool:
        """Queue ``write``, which holds a payload of ``size`` bytes. Return False if memory is full."""
        size += _ENTRY_BYTES
        if self.used + size > 2 * RING_BYTES:
            return False
        self._came_bytes += size
        self._waiting.append((size, write))
        if self._thread is None:
            self._start()
        return True

    def rest(self) -> None:
        """End the thread, once all is written. The next `put` starts another."""
        self.quick = 0
        self._thread = None
        self._wake.set()

    def finish(self, deadline: float) -> int:
        """Write what waits until ``deadline``, a time.monotonic() value. Return how many writes are left. Blocks."""
        while self._waiting and time.monotonic() < deadline:
            if self._thread is None and self._write_next():
                continue
            self._wake.set()
            time.sleep(POLL_S / 10)
        left = len(self._waiting)
        self.rest()
        return left

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="ampmon-spool", daemon=True)
        self._thread = thread
        try:
            thread.start()
        except RuntimeError:  # at the interpreter's exit, or too many threads: `finish` writes
            self._thread = None

    def _run(self) -> None:
        me = threading.current_thread()
        retry_s = POLL_S
        # `rest`, and then another `put`, may have put a new thread in place of this one.
        while self._thread is me:
            refused = False
            while self._waiting and self._thread is me and not refused:
                refused = not self._write_next()
            again_s = max(2 * retry_s, _RETRY_MIN_S)
            retry_s = min(again_s, _RETRY_MAX_S) if refused else POLL_S
            self._wake.wait(retry_s)
            self._wake.clear()

    def _write_next(self) -> bool:
        # It stays first until it is written, because a refused write is tried again.
        size, write = self._waiting[0]
        self._began_s = started = self._clock()
        try:
            write()
        except Exception as error:
            self.quick = 0
            self.problem = words(error)
            return False
        finally:
            self._began_s = None
        self.problem = None
        self.quick = self.quick + 1 if self._clock() - started < SLOW_S else 0
        self._went_bytes += size
        self._waiting.popleft()
        return True


def words(error: Exception) -> str:
    """The system's message for an error, without its number."""
    return getattr(error, "strerror", None) or str(error)
