"""Revoked sessions. Sessions are signed and not stored, so the store holds only the revoked ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ampmon.transport.proof import digest_of
from ampmon_server.http.auth.keys import COOKIE_SECONDS
from ampmon_server.http.auth.tokens import KNOWN_S, remember
from ampmon_server.store import Store


class Sessions:
    """Revokes sessions, in cookies or held by a page. Call `revoke` from any thread, `is_revoked` from one event loop.

    May raise Busy. ``clock`` gives the time of day; ``monotonic`` decides how long a lookup is cached.
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
        self._known: dict[str, tuple[float, bool]] = {}

    def revoke(self, session: str) -> None:
        """Revoke a session: here at once, in other server processes within `KNOWN_S`. Blocks."""
        now = round(self._clock() * 1e6)
        # No session lasts longer than a cookie.
        self._store.revoke_session(digest_of(session), now + COOKIE_SECONDS * 1_000_000, now)
        remember(self._known, session, (self._monotonic() + KNOWN_S, True))

    async def is_revoked(self, session: str) -> bool:
        """Whether a session with a valid signature was revoked."""
        now = self._monotonic()
        until, revoked = self._known.get(session, (0.0, False))
        if now >= until:
            if until:  # else many event streams of a session would query at once
                remember(self._known, session, (now + KNOWN_S, revoked))
            revoked = await asyncio.to_thread(self._store.is_session_revoked, digest_of(session))
            remember(self._known, session, (now + KNOWN_S, revoked))
        return revoked
