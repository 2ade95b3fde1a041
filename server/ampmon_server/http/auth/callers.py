"""Identifies the caller of a request by a token, a page session or a cookie."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from starlette.datastructures import Headers

from ampmon_server.http.auth.caller import ELSEWHERE, OPERATOR, OWN, Caller
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.sessions import Sessions
from ampmon_server.http.auth.tokens import PREFIX, Tokens
from ampmon_server.settings import Settings
from ampmon_server.store import Token


COOKIES_MAX = 8
"""How many cookies with the server's name are looked at: rejecting one costs a signature."""


class Callers:
    """Finds callers; None for credentials that are unknown, expired, revoked or damaged. May raise Busy."""

    def __init__(self, keys: Keys, tokens: Tokens, sessions: Sessions, settings: Settings) -> None:
        self._keys = keys
        self._tokens = tokens
        self._sessions = sessions
        self._settings = settings

    async def with_key(self, given: str) -> Caller | None:
        """The caller with this token or page session."""
        if given.startswith(PREFIX):  # first, because rejecting a session costs a signature
            return await self.with_token(given)
        holder = self._keys.session_holder(given)
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
            holder = self._keys.cookie_holder(given)
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
