"""One-time codes that bring a browser in: held in memory, used up by the first who comes with one."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable


CODE_SECONDS = 600
CODES_MAX = 1000


class Logins:
    """The codes that are still good. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._expiries: dict[bytes, float] = {}

    def new(self, *, expires: bool = True) -> str:
        """A code that is good once, for ten minutes, or until it is used. The oldest go where there are too many."""
        code = secrets.token_urlsafe(32)
        expiry = self._clock() + CODE_SECONDS if expires else float("inf")
        with self._lock:
            self._forget_expired()
            while len(self._expiries) >= CODES_MAX:
                del self._expiries[next(iter(self._expiries))]
            self._expiries[_digest(code)] = expiry
        return code

    def redeem(self, code: str) -> bool:
        """Use a code up; whether it was good."""
        with self._lock:
            self._forget_expired()
            # Looked up by digest, so the time it takes tells nothing of a code.
            return self._expiries.pop(_digest(code), None) is not None

    def _forget_expired(self) -> None:
        now = self._clock()
        self._expiries = {code: expiry for code, expiry in self._expiries.items() if expiry > now}


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()
