"""Decides when to retry: after growing delays with a random part, so that clients do not retry together."""

from __future__ import annotations

import random
from collections.abc import Callable


FIRST_S = 1.0
MAX_S = 30.0
LOCAL_FIRST_S = 0.1
LOCAL_MAX_S = 2.0
"""A server on this machine is tried more often: it costs nothing, and somebody is waiting for the page."""
_SPREAD = 4.0


class Backoff:
    """Delays that double from ``first_s`` up to ``max_s``, each shortened at random by up to half."""

    def __init__(
        self, clock: Callable[[], float], *, first_s: float = FIRST_S, max_s: float = MAX_S
    ) -> None:
        self._clock = clock
        self._first_s = first_s
        self._max_s = max_s
        self._delay_s = first_s
        self._until_s: float | None = None

    def failed(self, retry_after_s: float | None = None) -> None:
        """Begin the next delay. ``retry_after_s`` adds to it, plus a random part to spread the server's clients."""
        delay_s = self._delay_s * random.uniform(0.5, 1.0)
        if retry_after_s is not None:
            delay_s += retry_after_s
            delay_s += random.uniform(0, min(_SPREAD * retry_after_s, self._max_s))
        self._until_s = self._clock() + delay_s
        self._delay_s = min(self._delay_s * 2, self._max_s)

    def succeeded(self) -> None:
        self._delay_s = self._first_s
        self._until_s = None

    def remaining_s(self) -> float:
        """Seconds until the next attempt; 0 for now."""
        return 0.0 if self._until_s is None else max(0.0, self._until_s - self._clock())
