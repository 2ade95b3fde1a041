"""How a browser comes in: one-time links out, a cookie or a session in memory for whoever comes with one."""

from __future__ import annotations

import anyio
import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response

from ampmon_server.auth import Keys, stranger
from ampmon_server.auth.guard import LOGIN_PATH, has_cookie
from ampmon_server.auth.keys import COOKIE_SECONDS
from ampmon_server.auth.logins import CODE_SECONDS
from ampmon_server.problems import problem
from ampmon_server.routes.answers import ServiceDependency, json_answer
from ampmon_server.service import Service


router = APIRouter()

HOME = "./"
"""The page, as seen from here: what lies before both is a proxy's matter."""
_BODY_BYTES_MAX = 4096
_BODY_SECONDS_MAX = 10.0
_HOW = "Make a new one with: ampmon token link"


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
    """What a stranger shows: a one-time code, or the token itself."""

    key: str
    memory: bool = False


@router.post("/api/v1/login-links", status_code=201)
def make_link(request: Request, service: ServiceDependency) -> Response:
    """A new one-time link, good for ten minutes."""
    # The name the caller used is the one that works from where the caller is; the guard has checked it.
    place = f"{request.url.scheme}://{request.headers['host']}{service.settings.base_path}"
    url = f"{place}{LOGIN_PATH}?code={service.logins.new()}"
    return json_answer({"url": url, "expires_s": CODE_SECONDS}, status=201)


@router.get(LOGIN_PATH, include_in_schema=False)
def log_in(request: Request, service: ServiceDependency, code: str = "") -> Response:
    """Trade a one-time code for a cookie, and go to the page."""
    if not service.logins.redeem(code):
        if has_cookie(request.headers, service.keys):
            return RedirectResponse(HOME, 303)
        return stranger.page(stranger.EXPIRED)
    return _with_cookie(RedirectResponse(HOME, 303), request, service.keys)


@router.post(LOGIN_PATH)
async def sign_in(request: Request, service: ServiceDependency) -> Response:
    """Trade a one-time code, or the token, for a cookie or, with `memory`, for a session that the page itself holds."""
    try:
        attempt = msgspec.json.decode(await _body(request), type=_Attempt)
    except (msgspec.DecodeError, UnicodeDecodeError, TimeoutError, ClientDisconnect):
        return problem(422, 'Send {"key": a one-time code or the token}.', field="body")
    if not await to_thread.run_sync(_is_good, service, attempt.key):
        return problem(401, f"This code was used, has expired or never was. {_HOW}")
    if attempt.memory:
        return json_answer({"session": service.keys.session()})
    return _with_cookie(Response(status_code=204), request, service.keys)


async def _body(request: Request) -> bytes:
    """What a stranger sends: no more, and no longer, than a key needs."""
    body = bytearray()
    with anyio.fail_after(_BODY_SECONDS_MAX):
        async for chunk in request.stream():
            body += chunk
            if len(body) > _BODY_BYTES_MAX:
                raise msgspec.DecodeError
    return bytes(body)


def _is_good(service: Service, key: str) -> bool:
    return service.keys.is_token(key) or service.logins.redeem(key)


def _with_cookie(answer: Response, request: Request, keys: Keys) -> Response:
    answer.set_cookie(
        keys.cookie_name,
        keys.cookie(),
        max_age=COOKIE_SECONDS,
        path=None,  # a browser takes the directory of this address, as it sees it: a proxy's prefix is in it
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer
