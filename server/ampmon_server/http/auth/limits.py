"""Rate limits, in the memory of this process alone: a rate, and what each token may request."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ampmon_server.settings import Settings


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


BURST_S = 4.0
"""After a pause, requests worth this many seconds may come at once."""
_RATES_MAX = 1024
_STREAM_WAIT_S = 10.0


class Limits:
    """Counts requests and streams. Raises TooManyAttempts beyond a limit. Not thread-safe. ``clock`` gives seconds."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._per_s = settings.requests_per_s
        self._streams_per_token_max = settings.streams_per_token_max
        self._rates: dict[str, Rate] = {}
        self._streams: Counter[str] = Counter()
        self.refused: Counter[str] = Counter({"requests": 0, "streams": 0})
        """Rejected requests by limit."""

    def request(self, token_id: str) -> None:
        """Count a request with this token."""
        rate = self._rates.get(token_id)
        if rate is None:
            # A proxy may name any number of users.
            if len(self._rates) >= _RATES_MAX:
                del self._rates[next(iter(self._rates))]
            rate = self._rates[token_id] = Rate(self._per_s, self._per_s * BURST_S, self._clock)
        if (wait_s := rate.taken()) > 0:
            self.refused["requests"] += 1
            detail = f"This token sent more than {self._per_s:g} requests a second. Retry later."
            raise TooManyAttempts(detail, wait_s)

    @contextmanager
    def stream(self, token_id: str) -> Iterator[None]:
        """Count an event stream as open with this token while the context lasts."""
        if (
            self._streams[token_id] >= self._streams_per_token_max
            or self._streams.total() >= 2 * self._streams_per_token_max
        ):
            self.refused["streams"] += 1
            raise TooManyAttempts("Too many event streams are open.", _STREAM_WAIT_S)
        self._streams[token_id] += 1
        try:
            yield
        finally:
            self._streams[token_id] -= 1
            if not self._streams[token_id]:
                del self._streams[token_id]
