"""Identifies the callers of requests, and proves to clients that this server knows their token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from starlette.datastructures import Headers

from ampmon.transport.proof import digest_of, id_of, proof
from ampmon_server.http.auth.access import ELSEWHERE, OPERATOR, OWN, Caller
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.proxies import parsed
from ampmon_server.http.auth.tokens import PREFIX, Sessions, Tokens
from ampmon_server.settings import Settings
from ampmon_server.store.access import Token


COOKIES_MAX = 8
"""How many cookies with the server's name are looked at: rejecting one costs a signature."""


@dataclass(frozen=True, slots=True)
class Callers:
    """Finds callers; None for credentials that are unknown, expired, revoked or damaged. May raise Busy."""

    _keys: Keys
    _tokens: Tokens
    _sessions: Sessions
    _settings: Settings

    async def with_key(self, given: str) -> Caller | None:
        """The caller with this token or page session."""
        if given.startswith(PREFIX):  # first, because rejecting a session costs a signature
            return await self.with_token(given)
        holder = self._keys.holder("session", given)
        return await (self.with_token(given) if holder is None else self._held(given, holder))

    async def with_token(self, given: str) -> Caller | None:
        """The caller with this token."""
        if self._keys.is_token(given):
            return OPERATOR
        return _caller(await self._tokens.with_secret(given))

    def signed_in_elsewhere(self, name: str) -> Caller | None:
        """The user of this name, whom a proxy authenticated; None if no proxy may do that, or for an empty name."""
        settings = self._settings
        if settings.user_header is None or not name:
            return None
        projects = None if settings.user_projects is None else frozenset(settings.user_projects)
        return Caller(name, frozenset(settings.user_scopes), projects, f"{ELSEWHERE}{name}")

    async def with_cookie(self, headers: Headers) -> Caller | None:
        """The caller whose cookie a request carries. A browser sends one of each path, such as a proxy's former one."""
        named, pairs = self._keys.cookie_name, headers.get("cookie", "").split(";")
        each = (name_and_value.strip().partition("=") for name_and_value in pairs)
        for given in islice((value for name, _, value in each if name == named), COOKIES_MAX):
            holder = self._keys.holder("cookie", given)
            if holder is not None and (caller := await self._held(given, holder)) is not None:
                return caller
        return None

    async def _held(self, session: str, holder: str) -> Caller | None:
        """The holder of a session with a valid signature; None if it was signed out or its token is not valid."""
        if await self._sessions.is_revoked(session):
            return None
        caller = await self.with_id(holder)
        return None if caller is None else replace(caller, session=session)

    async def is_known(self, caller: Caller) -> bool:
        """Whether a caller who was identified earlier still has access."""
        if caller.session is not None and await self._sessions.is_revoked(caller.session):
            return False
        return await self.with_id(caller.token_id) is not None

    async def with_id(self, token_id: str) -> Caller | None:
        """The caller whose token has this id."""
        if token_id == OWN:
            return OPERATOR
        if token_id.startswith(ELSEWHERE):
            return self.signed_in_elsewhere(token_id.removeprefix(ELSEWHERE))
        return _caller(await self._tokens.with_id(token_id))


def _caller(token: Token | None) -> Caller | None:
    if token is None:
        return None
    projects = None if token.projects is None else frozenset(token.projects)
    return Caller(token.owner, frozenset(token.scopes), projects, token.id)


_HTTP_PORT = 80


class Proofs:
    """Proves knowledge of the server's own token and those of its database, for the server's own addresses only.

    Those are the local address of a connection and the names in ``named``. A name includes the port that clients dial
    if that differs from the server's.
    """

    def __init__(self, keys: Keys, tokens: Tokens, named: Sequence[str]) -> None:
        self._own = digest_of(keys.token)
        self._spare = hmac.digest(keys.token.encode(), b"proofs of unknown tokens", hashlib.sha256)
        self._tokens = tokens
        self._named = frozenset(each.lower() for each in named)

    def is_own(self, address: str, server: tuple[str, int | None] | None) -> bool:
        """Whether ``address``, which a client dialled, is this server's. ``server`` is this end of the connection."""
        if server is None or server[1] is None:
            return address in self._named
        host, port = _plain(server[0]), server[1]
        name, _, dialled = address.rpartition(":")
        return (
            address == f"{host}:{port}"
            or address in self._named
            or (name in self._named and dialled in {str(port), str(_HTTP_PORT)})
        )

    async def prove(self, nonce: str, token_id: str, address: str) -> str:
        """Return the proof for the token with this id. For an invalid or unknown id, return what looks like a proof.

        May raise Busy and TooManyAttempts.
        """
        # The same each time, or two requests with one nonce would show that the id is unknown.
        spare = hmac.digest(self._spare, token_id.encode(), hashlib.sha256)
        if token_id == id_of(self._own):
            return proof(self._own, nonce, address)
        token = await self._tokens.with_id(token_id, used=False)
        return proof(spare if token is None else token.digest, nonce, address)


def _plain(host: str) -> str:
    """An address as in a URL."""
    found = parsed(host)
    if found is None:
        return host
    return f"[{found}]" if found.version == 6 else str(found)
