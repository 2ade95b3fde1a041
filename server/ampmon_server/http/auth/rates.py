"""A rate limiter: a bucket that fills at a steady rate, in the memory of this process alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TooManyAttempts(Exception):
    """A rate limit was exceeded; ``wait_s`` is the number of seconds until a retry can succeed."""

    def __init__(self, detail: str, wait_s: float) -> None:
        super().__init__(detail)
        self.wait_s = max(math.ceil(wait_s), 1)


class Rate:
    """Allows ``per_s`` uses a second, and ``burst`` at once after a pause. Not thread-safe."""

    def __init__(
        self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._held, self._at = burst, clock()

    def take(self, detail: str) -> None:
        """Use it once. Raises TooManyAttempts with ``detail`` if that exceeds the rate."""
        if (wait_s := self.taken()) > 0:
            raise TooManyAttempts(detail, wait_s)

    def taken(self) -> float:
        """Use it once and return 0, or return the seconds until it may be used."""
        self._fill()
        if self._held < 1:
            return (1 - self._held) / self._per_s
        self._held -= 1
        return 0.0

    def turn(self, wait_max_s: float) -> float:
        """Use it once and return the seconds to wait before, at most ``wait_max_s``. Uses beyond the rate queue up."""
        self._fill()
        self._held = max(self._held - 1, -wait_max_s * self._per_s)
        return max(-self._held / self._per_s, 0.0)

    def _fill(self) -> None:
        now = self._clock()
        self._held = min(self._held + (now - self._at) * self._per_s, self._burst)
        self._at = now
