"""The guard: ASGI middleware that lets nothing through to any route, present or future, without token or cookie.

It also puts the security headers on every answer and turns what nobody caught into a problem document. It knows no
route but the one that logs in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from html import escape
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ampmon_server.auth.keys import Keys
from ampmon_server.problems import problem
from ampmon_server.settings import LOOPBACK


LOGIN_PATH = "/login"
SECURITY_HEADERS = {
    # Plotly sets styles on elements, and draws heatmaps and downloads through data: and blob: images.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_HOW_TO_LOG_IN = (
    "Open the link that ampmon serve printed, or make a new one with: ampmon token link"
)
_log = logging.getLogger(__name__)


class Guard:
    """Denies by default. ``keys`` gives the keys once the server is open."""

    def __init__(
        self, app: ASGIApp, keys: Callable[[], Keys], allowed_hosts: Sequence[str] = ()
    ) -> None:
        self._app = app
        self._keys = keys
        self._hosts = frozenset(host.lower() for host in (*LOOPBACK, *allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _Sealed(send))
        else:  # no route speaks anything else
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: _Sealed) -> None:
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            if send.started:
                raise
            answer = problem(500, "The server failed at this; its log says how.")
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to who may not come in; None for who may."""
        headers = Headers(scope=scope)
        if _host_name(headers.get("host", "")) not in self._hosts:
            return problem(421, "This server does not answer under that name (Host header).")
        if scope["path"] == LOGIN_PATH and scope["method"] == "GET":
            return None
        if "authorization" in headers:
            scheme, _, token = headers["authorization"].partition(" ")
            allowed = scheme.lower() == "bearer" and self._keys().is_token(token.strip())
            return None if allowed else _unknown(headers)
        if not has_cookie(headers, self._keys()):
            return _unknown(headers)
        if scope["method"] not in _SAFE_METHODS and not _same_origin(headers):
            return problem(403, "A change asked for by a browser needs this server's own Origin.")
        return None


class _Sealed:
    """A send that puts the security headers on, and knows whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-cache")
        await self._send(message)


def has_cookie(headers: Headers, keys: Keys) -> bool:
    """Whether a request carries a cookie that this server gave."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return False
    morsel = cookies.get(keys.cookie_name)
    return morsel is not None and keys.is_cookie(morsel.value)


def unknown_page(title: str, words: str) -> HTMLResponse:
    """What a browser shows of someone who is not known."""
    body = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'><title>ampmon</title>"
        "<style>:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
        "main{max-width:36rem;margin:20vh auto;padding:0 1rem}</style>"
        f"<main><h1>{escape(title)}</h1><p>{escape(words)}</p></main></html>"
    )
    return HTMLResponse(body, 401)


def _unknown(headers: Headers) -> Response:
    if "text/html" in headers.get("accept", ""):
        return unknown_page("This server does not know you yet", _HOW_TO_LOG_IN)
    return problem(
        401,
        "Send the token in the data directory's file `token`: Authorization: Bearer <token>",
        headers={"WWW-Authenticate": 'Bearer realm="ampmon"'},
    )


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".")


def _same_origin(headers: Headers) -> bool:
    origin, host = headers.get("origin", ""), headers.get("host", "")
    return origin.lower() in {f"http://{host.lower()}", f"https://{host.lower()}"}
