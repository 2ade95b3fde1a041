"""One-time codes that bring a browser in: used up by the first who comes with one, at whichever server process."""

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
"""How long the code that a server shows when it starts is good, if the server stays that long."""
WRONG_PER_S, WRONG_BURST = 2.0, 20.0
"""So often a code may be wrong, for each costs a write; beyond that only codes that are listed are tried."""
LISTED_S = 2.0
"""So old the list of codes may be that are good."""


class Logins:
    """The codes that are still good: the store has their digests only. Safe to use from any thread; may raise Busy.

    ``clock`` gives the time of day, by which codes expire; ``monotonic`` measures how often wrong ones are tried.
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
        """A code that is good once, for so many seconds, and lets in as the holder of that token."""
        code = secrets.token_urlsafe(32)
        now = self._now()
        self._store.keep_login(digest_of(code), token_id, now + round(seconds * 1e6), now)
        with self._lock:
            self._listed_until = 0.0
        return code

    def redeem(self, code: str) -> str | None:
        """Use a code up; the id of its token, None where it was not good.

        Raises TooManyAttempts for one that is not listed in a flood of them; one that is listed is always tried, so
        wrong codes lock out nobody.
        """
        # Looked up by digest, so the time it takes reveals nothing of a code.
        digest = digest_of(code)
        if not self._may_try(digest):
            raise TooManyAttempts("Too many wrong codes are being tried. Try again.", LISTED_S)
        return self._store.use_login(digest, self._now())

    def withdraw(self, code: str) -> None:
        """Revoke a code: whoever made it may always, however many wrong ones are tried."""
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
            self._listed.remove(digest)  # it is used up now
            return True

    def _now(self) -> int:
        return round(self._clock() * 1e6)
