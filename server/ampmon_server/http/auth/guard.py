"""The guard: ASGI middleware that rejects requests without a valid token or session, also for routes added later.

It stores the `caller` in the request's state, adds the security headers to every response, and turns uncaught
exceptions into problem documents. It knows no paths: each route declares the access that it needs (`auth.access`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ampmon_server.http.auth.access import (
    SCOPE_OF,
    Access,
    Caller,
    find_route,
    is_plain,
    method_of,
    required_access,
    route_of,
)
from ampmon_server.http.auth.callers import Callers
from ampmon_server.http.auth.limits import Rate, TooManyAttempts
from ampmon_server.http.auth.proxies import Proxies
from ampmon_server.http.problems import problem
from ampmon_server.http.service import Service
from ampmon_server.pages import documentation
from ampmon_server.settings import LOOPBACK, Settings
from ampmon_server.store import StoreError


_HOST = re.compile(r"(?P<name>\[[^][/?#@]*\]|[^][:/?#@\\,\s]+)(:\d{0,5})?", re.ASCII)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
STRANGERS_PER_S, STRANGERS_BURST = 50.0, 200.0
"""How many requests without a known caller are rejected per second, and in a burst. Each rejection takes server time.
Further ones are delayed, which slows clients that wait for the answer. Open routes are not delayed if they succeed."""
STRANGERS_WAIT_S = 1.0
_log = logging.getLogger(__name__)


class Guard:
    """Denies by default. Finds the open server at the app's `service`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        names = map(_host_name, (*LOOPBACK, *settings.allowed_hosts))
        self._hosts = frozenset(name for name in names if name)
        self._proxies = Proxies(settings.behind_proxy, settings.user_header)
        self._framed = bool(settings.frame_ancestors)
        self._headers = security_headers(settings.frame_ancestors)
        self._strangers = Rate(STRANGERS_PER_S, STRANGERS_BURST)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # no route handles other protocols
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        # FastAPI parses all cookies, and older Pythons need quadratic time for a quoted one. Ours has no quotes.
        scope["headers"] = [
            (name, value.replace(b'"', b"") if name == b"cookie" else value)
            for name, value in scope["headers"]
        ]
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                self._add_headers(message)
                await self._wait_as_stranger(scope, message["status"])
            await send(message)

        try:
            answer = await self._refusal(scope) or self._app
            await answer(scope, receive, sent)
        except Exception:
            fields = {"method": method_of(scope), "route": route_of(scope), "status": 500}
            _log.exception("%(method)s %(route)s failed", fields, extra=fields)
            if started:
                raise
            await problem(500, "Internal error: see the server's log.")(scope, receive, sent)

    def _add_headers(self, start: Message) -> None:
        headers = MutableHeaders(scope=start)
        for name, value in self._headers.items():
            headers[name] = value
        headers.setdefault("Cache-Control", "no-cache")

    async def _wait_as_stranger(self, scope: Scope, status: int) -> None:
        """Delay 4xx responses to requests without a known caller, whichever code sends them."""
        if 400 <= status < 500 and "caller" not in scope.get("state", {}):
            await asyncio.sleep(self._strangers.turn(STRANGERS_WAIT_S))

    async def _refusal(self, scope: Scope) -> Response | None:
        """The response that rejects a request; None if it may proceed."""
        headers = Headers(scope=scope)
        # First, because it sets the scheme by which the origin is checked below.
        if (refusal := self._proxies.heed(scope)) is not None:
            return refusal
        # Another site can point its own name at this address (DNS rebinding), but not change Host.
        if _host_name(headers.get("host", "")) not in self._hosts:
            detail = "This server does not accept that host name (Host header): allow it with --allow-host."
            return problem(421, detail, headers={"Connection": "close"})
        route = find_route(scope["app"].routes, scope) if is_plain(scope["path"]) else None
        if route is not None and self._is_public(route):
            # Another site's page could sign this browser in as somebody else (login CSRF).
            return None if scope["method"] == "GET" else _unless_own(scope, headers)
        try:
            return await self._unless_known(scope, headers, route)
        except StoreError as error:
            scope.setdefault("state", {})["why"] = str(error)  # for the log
            detail = "Cannot check the token or session: the database is unavailable. Retry."
            return problem(503, detail, headers={"Retry-After": "1"})
        except TooManyAttempts as error:
            return problem(429, str(error), headers={"Retry-After": str(error.wait_s)})

    def _is_public(self, route: BaseRoute) -> bool:
        """Whether a route needs no token. A framed page needs none: in another site's frame browsers send no cookie."""
        access = required_access(route)
        return access == "public" or (access == "page" and self._framed)

    async def _caller(
        self, callers: Callers, scope: Scope, headers: Headers, key: str | None
    ) -> Caller | None:
        if key is not None:
            return await callers.with_key(key)
        if (name := self._proxies.user(scope, headers)) is not None:
            return callers.signed_in_elsewhere(name)
        return await callers.with_cookie(headers)

    async def _unless_known(
        self, scope: Scope, headers: Headers, route: BaseRoute | None
    ) -> Response | None:
        """The response if the caller is unknown or lacks a scope, else None. Raises Busy and TooManyAttempts."""
        key = _key(headers)
        service: Service = scope["app"].state.service
        caller = await self._caller(service.callers, scope, headers, key)
        if caller is None:
            return _unknown(headers)
        scope.setdefault("state", {})["caller"] = caller
        service.limits.request(caller.token_id)
        if key is None and scope["method"] not in _SAFE_METHODS:
            foreign = _unless_own(scope, headers)
            if foreign is not None:
                return foreign
        if not is_plain(scope["path"]):
            return problem(404, "The path contains control characters.")
        return None if route is None else _unless_allowed(caller, required_access(route))


def _key(headers: Headers) -> str | None:
    """The token or session that a request bears. Another scheme, such as Basic, is a proxy's own sign-in: None."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else None


def _unless_allowed(caller: Caller, access: Access) -> Response | None:
    """The response if the caller lacks the scope that a route needs, else None."""
    scope = SCOPE_OF[access]
    if scope is None or caller.may(scope):
        return None
    return problem(403, f"This needs a token with the scope `{scope}`.", scope=scope)


def _unknown(headers: Headers) -> Response:
    if "text/html" in headers.get("accept", ""):
        return HTMLResponse(documentation.sign_in(), 401)
    return problem(
        401,
        "Send a token, such as the one in the data directory's file `token`: Authorization: Bearer <token>",
        headers={"WWW-Authenticate": 'Bearer realm="ampmon"'},
    )


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port. None if the header holds anything else, which links would repeat."""
    found = _HOST.fullmatch(host)
    return None if found is None else found["name"].lower().removesuffix(".")


def _unless_own(scope: Scope, headers: Headers) -> Response | None:
    """The response to a change that another site's page may have requested; None if this server's page did.

    Over TLS, the page must have come over TLS too: anyone on its way could have altered it otherwise.
    """
    origin, host = headers.get("origin", ""), headers.get("host", "")
    schemes = ("https",) if scope["scheme"] == "https" else ("http", "https")
    if origin.lower() in {f"{scheme}://{host.lower()}" for scheme in schemes}:
        return None
    return problem(
        403, "A browser may change data only from this server's own page (Origin header)."
    )


def security_headers(frame_ancestors: Sequence[str] = ()) -> dict[str, str]:
    """The headers by name. ``frame_ancestors`` are origins in the syntax of a Content-Security-Policy."""
    ancestors = " ".join(frame_ancestors) or "'none'"
    headers = {
        # Plotly sets styles on elements, and draws heatmaps and downloads through data: and blob: images.
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
            f"connect-src 'self'; font-src 'self'; frame-ancestors {ancestors}; base-uri 'none'; form-action 'self'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if not frame_ancestors:  # it cannot name origins, and would forbid those that the policy allows
        headers["X-Frame-Options"] = "DENY"
    return headers
