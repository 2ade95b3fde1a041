"""How often something may be done: a bucket that fills at a steady rate, in memory, of this process alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TooManyAttempts(Exception):
    """It was tried too often of late; ``wait_s`` says when it is worth trying again."""

    def __init__(self, detail: str, wait_s: float) -> None:
        super().__init__(detail)
        self.wait_s = max(math.ceil(wait_s), 1)


class Rate:
    """So many a second, and ``burst`` at once after a rest. Not for several threads."""

    def __init__(
        self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._held, self._at = burst, clock()

    def take(self, detail: str) -> None:
        """Do it once. Raises TooManyAttempts, with ``detail``, where that is too often."""
        if (wait_s := self.taken()) > 0:
            raise TooManyAttempts(detail, wait_s)

    def taken(self) -> float:
        """Do it once, and 0; or in how many seconds it may be done."""
        self._fill()
        if self._held < 1:
            return (1 - self._held) / self._per_s
        self._held -= 1
        return 0.0

    def turn(self, wait_max_s: float) -> float:
        """Do it once, in so many seconds: those who come too often stand in line, and nobody longer than that."""
        self._fill()
        self._held = max(self._held - 1, -wait_max_s * self._per_s)
        return max(-self._held / self._per_s, 0.0)

    def _fill(self) -> None:
        now = self._clock()
        self._held = min(self._held + (now - self._at) * self._per_s, self._burst)
        self._at = now
