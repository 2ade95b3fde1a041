"""One-time codes that bring a browser in: used up by the first who comes with one, at whichever server process."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable

from ampmon_server.auth.caller import OWN
from ampmon_server.auth.rates import TooManyAttempts
from ampmon_server.store import Store


LOGIN_PATH = "/login"
CODE_SECONDS = 600
PRINTED_SECONDS = 30 * 24 * 3600
"""How long the code that a server shows when it starts is good, if the server stays that long."""
FAILURES_MAX = 20
FAILURES_SECONDS = 10.0
"""So many codes that are not good may be tried in so long; then none is, for each costs a write."""


class Logins:
    """The codes that are still good: the store has their digests only. Safe to use from any thread; may raise Busy."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    def new(self, seconds: float = CODE_SECONDS, token_id: str = OWN) -> str:
        """A code that is good once, for so many seconds, and lets in as the holder of that token."""
        code = secrets.token_urlsafe(32)
        now = self._now()
        self._store.keep_login(_digest(code), token_id, now + round(seconds * 1e6), now)
        return code

    def redeem(self, code: str) -> str | None:
        """Use a code up; the id of its token, None where it was not good. Raises TooManyAttempts."""
        self._refuse_a_flood()
        # Looked up by digest, so the time it takes tells nothing of a code.
        token_id = self._store.use_login(_digest(code), self._now())
        if token_id is None:
            with self._lock:
                self._failures.append(self._clock())
        return token_id

    def withdraw(self, code: str) -> None:
        """Let a code be good no more: whoever made it may always, however many wrong ones are tried."""
        self._store.use_login(_digest(code), self._now())

    def _refuse_a_flood(self) -> None:
        with self._lock:
            first = self._failures[0] if len(self._failures) == FAILURES_MAX else -FAILURES_SECONDS
        if self._clock() - first < FAILURES_SECONDS:
            raise TooManyAttempts(
                "Too many wrong codes were tried. Wait ten seconds.", FAILURES_SECONDS
            )

    def _now(self) -> int:
        return round(self._clock() * 1e6)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()
