"""Tokens, revoked sessions and used login codes in the database. What was looked up is cached for a moment."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from ampmon.transport.proof import digest_of, id_of
from ampmon_server.http.auth.keys import SECONDS
from ampmon_server.http.auth.limits import Rate, TooManyAttempts
from ampmon_server.store.access import AccessCalls, Token
from ampmon_server.store.engine.errors import StoreError


PREFIX = "ampmon_"
KNOWN_S = 2.0
"""How long a lookup is cached, with or without a result. A revocation takes effect everywhere within this time."""
KNOWN_MAX = 1024
UNKNOWN_PER_S, UNKNOWN_BURST = 50.0, 200.0
"""How many unseen tokens are looked up per second, and in a burst: they may be guesses."""
NOTED_US = 60 * 1_000_000
"""Minimum time between two writes of a token's last use, in us."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Tokens:
    """Creates, finds and revokes tokens. Safe to use from any thread, but find tokens from one event loop only.

    They expire by ``clock``, the time of day. ``monotonic`` decides how long a lookup is cached. Both return seconds.
    May raise Busy and, for tokens that this process has not seen before, TooManyAttempts.
    """

    _store: AccessCalls
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, Token]] = field(default_factory=dict)
    _unknown: dict[str, float] = field(default_factory=dict)
    _guesses: Rate = field(default_factory=lambda: Rate(UNKNOWN_PER_S, UNKNOWN_BURST))
    _all_until: float = 0.0
    _noted: dict[bytes, int] = field(default_factory=dict)
    # Own threads: those of the routes may all be busy drawing, and a note may wait for a writer.
    _asking: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="ampmon-tokens")
    )
    _noting: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="ampmon-token-notes")
    )

    def new(
        self,
        name: str,
        owner: str,
        scopes: Collection[str],
        projects: Collection[str] | None = None,
        expires: int | None = None,
    ) -> tuple[str, Token]:
        """Create a token; return its secret and stored form. ``expires`` in us since the epoch.

        Blocks; raises NameTaken.
        """
        secret = PREFIX + secrets.token_urlsafe(32)
        listed = None if projects is None else tuple(sorted(set(projects)))
        token = Token(digest_of(secret), name, owner, tuple(scopes), listed, self._now(), expires)
        self._store.keep_token(token)
        self._unknown.pop(token.id, None)
        return secret, token

    def revoke(self, named: str) -> None:
        """Revoke the tokens with this id or name. Blocks; raises NotFound."""
        for token in self._store.revoke_token(named, self._now()):
            self._known.pop(token.id, None)

    async def with_secret(self, given: str) -> Token | None:
        """The token with this secret, counted as used; None if it is not valid."""
        if not given.startswith(PREFIX):
            return None
        # Looked up by digest, so the time it takes reveals nothing about a token.
        digest = digest_of(given)
        token = await self._good(id_of(digest))
        # It was found by its id, which is only the start of the digest.
        if token is None or not hmac.compare_digest(token.digest, digest):
            return None
        return self._used(token)

    async def with_id(self, token_id: str, *, used: bool = True) -> Token | None:
        """The token that a cookie or a code was made with; None if it is not valid. Counts it as used if ``used``."""
        token = await self._good(token_id)
        return None if token is None else self._used(token) if used else token

    async def _good(self, token_id: str) -> Token | None:
        now = self.monotonic()
        if self._unknown.get(token_id, 0.0) > now:
            return None
        until, token = self._known.get(token_id, (0.0, None))
        if now >= until:
            if token is None and (wait_s := self._guesses.taken()) > 0:
                return await self._in_a_flood(token_id, wait_s)
            loop = asyncio.get_running_loop()
            token = await loop.run_in_executor(self._asking, self._look, token_id)
        return token if token is not None and token.is_good(self._now()) else None

    async def _in_a_flood(self, token_id: str, wait_s: float) -> Token | None:
        """Find an unseen token during a flood of possible guesses: read all tokens at once, at most every `KNOWN_S`."""
        if self.monotonic() >= self._all_until:
            self._all_until = self.monotonic() + KNOWN_S
            await asyncio.get_running_loop().run_in_executor(self._asking, self._look_at_all)
        _, token = self._known.get(token_id, (0.0, None))
        if token is None:
            raise TooManyAttempts("Too many requests with unknown tokens. Retry later.", wait_s)
        return token if token.is_good(self._now()) else None

    def _look_at_all(self) -> None:
        until = self.monotonic() + KNOWN_S
        for token in self._store.tokens():
            if token.is_good(self._now()):
                remember(self._known, token.id, (until, token))

    def _look(self, token_id: str) -> Token | None:
        until = self.monotonic() + KNOWN_S
        token = self._store.token(token_id)
        if token is None:
            self._known.pop(token_id, None)
            remember(self._unknown, token_id, until)
        else:  # in a cache of its own, so unknown tokens never evict known ones
            remember(self._known, token_id, (until, token))
        return token

    def _used(self, token: Token) -> Token:
        now = self._now()
        if now - max(token.last_used or 0, self._noted.get(token.digest, 0)) >= NOTED_US:
            self._noted[token.digest] = now
            with suppress(RuntimeError):  # the server is stopping
                self._noting.submit(self._note, token.digest, now)
        return token

    def _note(self, digest: bytes, now: int) -> None:
        try:
            self._store.mark_token_used(digest, now)
        except StoreError as error:  # no request should fail for it
            _log.warning("Cannot record the last use of token %s: %s", id_of(digest), error)

    def _now(self) -> int:
        return round(self.clock() * 1e6)

    def close(self) -> None:
        """Finish the lookups and notes under way, and cancel those that wait."""
        for threads in (self._asking, self._noting):
            threads.shutdown(wait=True, cancel_futures=True)


Kept = TypeVar("Kept")


def remember(among: dict[str, Kept], key: str, what: Kept) -> None:
    """Store ``what`` under ``key`` as the newest entry, and drop the oldest ones beyond `KNOWN_MAX`."""
    among.pop(key, None)
    for oldest in list(among)[: max(len(among) - KNOWN_MAX + 1, 0)]:
        among.pop(oldest, None)
    among[key] = what


@dataclass(slots=True, eq=False, repr=False)
class Sessions:
    """Revokes sessions and login codes. Call `revoke` from any thread, `is_revoked` from one event loop.

    ``clock`` and ``monotonic`` are as for `Tokens`. May raise Busy.
    """

    _store: AccessCalls
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, bool]] = field(default_factory=dict)

    def revoke(self, session: str) -> bool:
        """Revoke a session: here at once, in other server processes within `KNOWN_S`. Or use up a code. Blocks.

        Return False if it was revoked before.
        """
        now = round(self.clock() * 1e6)
        # Nothing lasts longer than a cookie.
        until = now + SECONDS["cookie"] * 1_000_000
        fresh = self._store.revoke_session(digest_of(session), until, now)
        remember(self._known, session, (self.monotonic() + KNOWN_S, True))
        return fresh

    async def is_revoked(self, session: str) -> bool:
        """Whether a session with a valid signature was revoked."""
        now = self.monotonic()
        until, revoked = self._known.get(session, (0.0, False))
        if now >= until:
            if until:  # else many event streams of a session would query at once
                remember(self._known, session, (now + KNOWN_S, revoked))
            revoked = await asyncio.to_thread(self._store.is_session_revoked, digest_of(session))
            remember(self._known, session, (now + KNOWN_S, revoked))
        return revoked
