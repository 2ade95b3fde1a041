"""One-time login codes. The first browser to send a code uses it up, at any server process."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

from ampmon.transport.proof import digest_of
from ampmon_server.http.auth.caller import OWN
from ampmon_server.http.auth.rates import Rate, TooManyAttempts
from ampmon_server.store import Store


LOGIN_PATH = "/login"
CODE_SECONDS = 600
PRINTED_SECONDS = 30 * 24 * 3600
"""Lifetime of the code that a server prints when it starts; it ends earlier if the server stops."""
WRONG_PER_S, WRONG_BURST = 2.0, 20.0
"""How many codes are tried per second, and in a burst: each costs a write. Beyond it, only listed codes are tried."""
LISTED_S = 2.0
"""Maximum age of the list of valid codes, in seconds."""


class Logins:
    """Unexpired login codes. The store holds only their digests. Safe to use from any thread; may raise Busy.

    ``clock`` gives the time of day, by which codes expire. ``monotonic`` measures how often codes are tried.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._tried = Rate(WRONG_PER_S, WRONG_BURST, monotonic)
        self._listed: set[bytes] = set()
        self._listed_until = 0.0

    def new(self, seconds: float = CODE_SECONDS, token_id: str = OWN) -> str:
        """Create a code that signs in once, within ``seconds``, as the holder of that token."""
        code = secrets.token_urlsafe(32)
        now = self._now()
        self._store.keep_login(digest_of(code), token_id, now + round(seconds * 1e6), now)
        with self._lock:
            self._listed_until = 0.0
        return code

    def redeem(self, code: str) -> str | None:
        """Use up a code and return the id of its token, None if it is not valid.

        If many codes are tried, raises TooManyAttempts for one that is not listed. Listed codes are always tried, so
        wrong codes lock out nobody.
        """
        # Looked up by digest, so the time it takes reveals nothing about a code.
        digest = digest_of(code)
        if not self._may_try(digest):
            raise TooManyAttempts("Too many wrong codes are being tried. Try again.", LISTED_S)
        return self._store.use_login(digest, self._now())

    def withdraw(self, code: str) -> None:
        """Revoke a code, however many wrong ones are being tried."""
        self._store.use_login(digest_of(code), self._now())

    def _may_try(self, digest: bytes) -> bool:
        with self._lock:
            if self._tried.taken() == 0:
                return True
            if self._monotonic() >= self._listed_until:
                self._listed_until = self._monotonic() + LISTED_S
                self._listed = self._store.logins(self._now())
            if digest not in self._listed:
                return False
            self._listed.remove(digest)  # the caller uses it up
            return True

    def _now(self) -> int:
        return round(self._clock() * 1e6)
