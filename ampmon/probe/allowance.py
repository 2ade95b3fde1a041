"""Limits work that could run in every update to a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable


_SAVED_NS = 200_000_000
"""The largest balance, and the initial one: overflows are most likely in the first updates."""


class TimeAllowance:
    """Decides whether work may run, for at most ``share`` of the time overall (0 to 1). ``clock`` gives nanoseconds."""

    def __init__(self, share: float, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._share = share
        self._clock = clock
        self._left = float(_SAVED_NS)
        self._looked = clock()
        self._took = 0

    def begin(self) -> int | None:
        """Return the current time if the balance covers the work's last duration, else None.

        With a ``share`` of 1 the work may always run.
        """
        now = self._clock()
        self._left = min(self._left + self._share * (now - self._looked), _SAVED_NS)
        self._looked = now
        return now if self._left >= self._took or self._share >= 1 else None

    def end(self, began: int) -> None:
        """Charge the time since ``began`` to the balance."""
        self._took = self._clock() - began
        self._left -= self._took
