"""Whom this server could not understand lately, in words for its page: they have no run that could say it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


KEPT_S = 3600.0
WORDS_MAX = 8


class RejectedClients:
    """The newest different refusals of the last hour. May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, float] = {}

    def note(self, words: str) -> None:
        """Keep a refusal; of more than a few the oldest goes."""
        with self._lock:
            self._refused.pop(words, None)
            self._refused[words] = self._clock()
            while len(self._refused) > WORDS_MAX:
                del self._refused[next(iter(self._refused))]

    def recent(self) -> list[str]:
        """Those of the last hour, the newest last."""
        with self._lock:
            since = self._clock() - KEPT_S
            return [words for words, at in self._refused.items() if at >= since]
