"""Keeps something that could be done in every update within a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable


_SAVED_NS = 200_000_000
"""What may be saved up, and is there at the start: overflows are most likely in the first updates."""


class Allowance:
    """Whether work may be done: on the whole for ``share`` of the time, 0 to 1. ``clock`` gives nanoseconds."""

    def __init__(self, share: float, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._share = share
        self._clock = clock
        self._left = float(_SAVED_NS)
        self._looked = clock()
        self._took = 0

    def begin(self) -> int | None:
        """The time, if what the work took last is there to be spent; else None."""
        now = self._clock()
        self._left = min(self._left + self._share * (now - self._looked), _SAVED_NS)
        self._looked = now
        return now if self._left >= self._took or self._share >= 1 else None

    def end(self, began: int) -> None:
        """The work is done."""
        self._took = self._clock() - began
        self._left -= self._took
