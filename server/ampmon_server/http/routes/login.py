"""How a browser comes in, and goes: one-time links out, a cookie or a session in memory for whoever comes with one."""

from __future__ import annotations

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from ampmon_server.http.auth import Caller, stranger
from ampmon_server.http.auth.access import requires
from ampmon_server.http.auth.keys import COOKIE_SECONDS
from ampmon_server.http.auth.logins import CODE_SECONDS, LOGIN_PATH
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes import bodies
from ampmon_server.http.routes.answers import ServiceDependency, json_answer, tagged_json, takes
from ampmon_server.http.routes.bodies import BodyRefused
from ampmon_server.http.routes.callers import CallerDependency, NotAllowed
from ampmon_server.http.service import Service


router = APIRouter()

HOME = "./"
"""The page, as seen from here: what lies before both is a proxy's matter."""
_BODY_BYTES_MAX, _BODY_SECONDS_MAX = 4096, 10.0
"""Of what a stranger sends: no more, and no longer, than a key needs."""
_HOW = "Make a new one with: ampmon token link"


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
    """What a stranger shows: a one-time code, or a token itself."""

    key: str
    memory: bool = False


@router.post("/api/v1/login-links", status_code=201)
@requires("token")
def make_link(request: Request, service: ServiceDependency, caller: CallerDependency) -> Response:
    """Create a one-time link that signs a browser in as the caller. It expires after ten minutes."""
    if caller.signed_in_elsewhere:  # a cookie would outlast what the proxy says
        raise NotAllowed("Who signs in at the proxy needs no link, and can make none.", "admin")
    # The name the caller used is the one that works from where the caller is; the guard has checked it.
    place = f"{request.url.scheme}://{request.headers['host']}{service.settings.base_path}"
    url = f"{place}{LOGIN_PATH}?code={service.logins.new(token_id=caller.token_id)}"
    return json_answer({"url": url, "expires_s": CODE_SECONDS}, status=201)


@router.get(LOGIN_PATH, include_in_schema=False)
@requires("public")
async def log_in(request: Request, service: ServiceDependency, code: str = "") -> Response:
    """Trade a one-time code for a cookie, and go to the page."""
    caller = await _redeemed(service, code)
    if caller is None:
        if await service.callers.with_cookie(request.headers) is not None:
            return RedirectResponse(HOME, 303)
        return stranger.page(stranger.EXPIRED)
    return _with_cookie(RedirectResponse(HOME, 303), request, service, caller)


@router.post(
    LOGIN_PATH,
    responses={204: {"description": "The cookie comes with it."}, **refusals(401, 429)},
    openapi_extra=takes(_Attempt),
)
@requires("public")
async def sign_in(request: Request, service: ServiceDependency) -> Response:
    """Exchange a one-time code or a token for a cookie, or with `memory` for a session that the page holds."""
    try:
        body = await bodies.read(request, _BODY_BYTES_MAX, _BODY_SECONDS_MAX)
        attempt = msgspec.json.decode(body, type=_Attempt)
    except (msgspec.DecodeError, UnicodeDecodeError, BodyRefused):
        return problem(422, 'Send {"key": a one-time code or the token}.', field="body")
    caller = await service.callers.with_token(attempt.key) or await _redeemed(service, attempt.key)
    if caller is None:
        return problem(401, f"This code was used, has expired or never was. {_HOW}")
    if attempt.memory:
        return json_answer({"session": service.keys.session(caller.token_id)})
    return _with_cookie(Response(status_code=204), request, service, caller)


@router.post("/logout", status_code=204)
@requires("token")
async def sign_out(service: ServiceDependency, caller: CallerDependency) -> Response:
    """End the session and remove the cookie."""
    if (session := caller.session) is not None:
        await service.writer.run(lambda: service.sessions.revoke(session))
    answer = Response(status_code=204)
    answer.set_cookie(service.keys.cookie_name, max_age=0, path=None, httponly=True, samesite="lax")
    return answer


@router.get("/api/v1/me")
@requires("token")
async def who_asks(request: Request, caller: CallerDependency) -> Response:
    """Show the caller's owner (null for the server's own token), scopes and projects (null for all).

    `signed_in_elsewhere`: at the proxy in front, which alone can sign them out.
    """
    me = {
        "owner": caller.owner,
        "scopes": sorted(caller.scopes),
        "projects": None if caller.projects is None else sorted(caller.projects),
        "signed_in_elsewhere": caller.signed_in_elsewhere,
    }
    return tagged_json(me, request)


async def _redeemed(service: Service, code: str) -> Caller | None:
    """Who made a one-time code, which is used up; None where it is not good, or its token is not any more."""
    token_id = await to_thread.run_sync(service.logins.redeem, code)
    return None if token_id is None else await service.callers.with_id(token_id)


def _with_cookie(answer: Response, request: Request, service: Service, caller: Caller) -> Response:
    answer.set_cookie(
        service.keys.cookie_name,
        service.keys.cookie(caller.token_id),
        max_age=COOKIE_SECONDS,
        path=None,  # a browser takes the directory of this address, as it sees it: a proxy's prefix is in it
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer
