"""Recent rejections of client requests, as text for the server's page: a rejected client has no run to show them on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


KEPT_S = 3600.0
WORDS_MAX = 8


class RejectedClients:
    """The newest distinct rejections of the last hour. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, float] = {}

    def note(self, words: str) -> None:
        """Record a rejection. Beyond `WORDS_MAX` the oldest is dropped."""
        with self._lock:
            self._refused.pop(words, None)
            self._refused[words] = self._clock()
            while len(self._refused) > WORDS_MAX:
                del self._refused[next(iter(self._refused))]

    def recent(self) -> list[str]:
        """The rejections of the last hour, newest last."""
        with self._lock:
            since = self._clock() - KEPT_S
            return [words for words, at in self._refused.items() if at >= since]
