"""One-time codes that bring a browser in: used up by the first who comes with one, at whichever server process."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable

from ampmon_server.store import Store


CODE_SECONDS = 600
PRINTED_SECONDS = 30 * 24 * 3600
"""How long the code that a server prints when it starts is good, if the server stays that long."""


class Logins:
    """The codes that are still good: the store has their digests only. Safe to use from any thread; may raise Busy."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def new(self, seconds: float = CODE_SECONDS) -> str:
        """A code that is good once, for so many seconds."""
        code = secrets.token_urlsafe(32)
        now = self._now()
        self._store.keep_login(_digest(code), now + round(seconds * 1e6), now)
        return code

    def redeem(self, code: str) -> bool:
        """Use a code up; whether it was good."""
        # Looked up by digest, so the time it takes tells nothing of a code.
        return self._store.use_login(_digest(code), self._now())

    def _now(self) -> int:
        return round(self._clock() * 1e6)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()
