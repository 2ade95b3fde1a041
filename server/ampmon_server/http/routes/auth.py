"""Sign-in and sign-out of browsers, access tokens, and the proof by which clients verify this server."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ampmon import wire
from ampmon.transport.proof import ID_LENGTH, NONCE_LENGTH, PROOF_PATH
from ampmon_server.http.auth.access import Caller, Scope, requires
from ampmon_server.http.auth.keys import SECONDS
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes import bodies
from ampmon_server.http.routes.answers import json_answer, tagged_json
from ampmon_server.http.routes.bodies import BodyRefused, read_json, takes
from ampmon_server.http.routes.parameters import NO_NUL
from ampmon_server.http.service import (
    OVER_ALL,
    CallerDependency,
    NotAllowed,
    Service,
    ServiceDependency,
)
from ampmon_server.pages import documentation
from ampmon_server.store import Token


router = APIRouter()

LOGIN_PATH = "/login"
HOME = "./"
"""The page, relative to this address, so that it works under a proxy's prefix."""
_BODY_BYTES_MAX, _BODY_SECONDS_MAX = 4096, 10.0
"""Limits on a body without authentication: no more bytes and seconds than a key needs."""
_HOW = "Create a new one with: ampmon token link"


class _Attempt(msgspec.Struct, forbid_unknown_fields=True):
    """What to sign in with: a one-time code or a token."""

    key: str
    memory: bool = False


@router.post("/api/v1/login-links", status_code=201)
@requires("token")
async def make_link(
    request: Request, service: ServiceDependency, caller: CallerDependency
) -> Response:
    """Create a one-time link that signs a browser in as the caller. It expires after ten minutes."""
    if caller.signed_in_elsewhere:  # a cookie would outlast the sign-in at the proxy
        raise NotAllowed(
            "Users who sign in at the proxy need no sign-in link and cannot create one."
        )
    # The host name that the caller used works from where the caller is. The guard has checked it.
    place = f"{request.url.scheme}://{request.headers['host']}{service.settings.base_path}"
    url = f"{place}{LOGIN_PATH}?code={service.keys.sign('code', caller.token_id)}"
    return json_answer({"url": url, "expires_s": SECONDS["code"]}, status=201)


@router.get(LOGIN_PATH, include_in_schema=False)
@requires("public")
async def log_in(request: Request, service: ServiceDependency, code: str = "") -> Response:
    """Exchange a one-time code for a cookie, and redirect to the page."""
    caller = await _redeemed(service, code)
    if caller is None:
        # The link that signed this browser in was opened again.
        if await service.callers.with_cookie(request.headers) is not None:
            return RedirectResponse(HOME, 303)
        return HTMLResponse(documentation.sign_in(expired=True), 401)
    return _with_cookie(RedirectResponse(HOME, 303), request, service, caller)


@router.post(
    LOGIN_PATH,
    responses={
        204: {"description": "Signed in: the response sets the session cookie."},
        **refusals(401, 429),
    },
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
        return problem(401, f"This code was used, has expired or is unknown. {_HOW}")
    if attempt.memory:
        return json_answer({"session": service.keys.sign("session", caller.token_id)})
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

    `signed_in_elsewhere` is true if a proxy signed the caller in. Only that proxy can sign them out.
    """
    me = {
        "owner": caller.owner,
        "scopes": sorted(caller.scopes),
        "projects": None if caller.projects is None else sorted(caller.projects),
        "signed_in_elsewhere": caller.signed_in_elsewhere,
    }
    return tagged_json(me, request)


async def _redeemed(service: Service, code: str) -> Caller | None:
    """Use up a one-time code and return who made it; None if the code or its token is not valid."""
    token_id = service.keys.holder("code", code)
    if token_id is None or not await to_thread.run_sync(service.sessions.revoke, code):
        return None
    return await service.callers.with_id(token_id)


def _with_cookie(answer: Response, request: Request, service: Service, caller: Caller) -> Response:
    answer.set_cookie(
        service.keys.cookie_name,
        service.keys.sign("cookie", caller.token_id),
        max_age=SECONDS["cookie"],
        path=None,  # the browser uses the directory of this address, which includes a proxy's prefix
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


@router.get(PROOF_PATH, responses=refusals(429))
@requires("public")
async def prove(
    request: Request,
    service: ServiceDependency,
    nonce: Annotated[str, Query(pattern=f"^[0-9a-f]{{{NONCE_LENGTH}}}$")],
    token: Annotated[str, Query(pattern=f"^[0-9a-f]{{{ID_LENGTH}}}$")],
    address: Annotated[str, Query(pattern="^[!-~]{1,300}$")],
) -> Response:
    """Prove that the server knows the token with this id. The answer for an unknown id proves nothing."""
    if not service.proofs.is_own(address, request.scope.get("server")):
        return problem(
            421,
            "This server does not serve that address: allow it with --allow-host.",
            field="address",
        )
    answer = json_answer({"proof": await service.proofs.prove(nonce, token, address)})
    answer.headers["Cache-Control"] = "no-store"
    return answer


_TOKEN_BODY_BYTES_MAX = 64 * 1024
_Called = Annotated[str, msgspec.Meta(pattern=bodies.CALLED)]
_Scopes = Annotated[frozenset[Scope], msgspec.Meta(min_length=1)]
_Projects = Annotated[frozenset[wire.Label], msgspec.Meta(min_length=1, max_length=64)]


class _WantedToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create. ``projects`` is null for all. ``expires`` is in us since the epoch, null for never."""

    name: _Called
    owner: wire.Label
    scopes: _Scopes
    projects: _Projects | None = None
    expires: Annotated[int, msgspec.Meta(ge=0, le=wire.COUNT_MAX)] | None = None


@router.get("/api/v1/tokens", dependencies=[OVER_ALL])
@requires("admin")
def list_tokens(service: ServiceDependency) -> Response:
    """List all tokens, newest first, with secrets hidden."""
    return json_answer({"tokens": [_token_json(each) for each in service.store.tokens()]})


@router.post(
    "/api/v1/tokens",
    status_code=201,
    dependencies=[OVER_ALL],
    responses=refusals(408, 409, 413),
    openapi_extra=takes(_WantedToken),
)
@requires("admin")
async def make_token(request: Request, service: ServiceDependency) -> Response:
    """Create a token. This answer alone shows its secret. 409 if a valid token has the name."""
    wanted = await read_json(request, service.settings, _WantedToken, _TOKEN_BODY_BYTES_MAX)
    if wanted.expires is not None and wanted.expires <= time.time() * 1e6:
        return problem(422, "The expiry is in the past.", field="expires")
    secret, token = await service.writer.run(
        lambda: service.tokens.new(
            wanted.name, wanted.owner, sorted(wanted.scopes), wanted.projects, wanted.expires
        )
    )
    return json_answer({"token": secret, **_token_json(token)}, status=201)


@router.delete("/api/v1/tokens/{id}", status_code=204, dependencies=[OVER_ALL])
@requires("admin")
async def revoke_token(
    token_id: Annotated[str, Path(alias="id", pattern=NO_NUL)], service: ServiceDependency
) -> Response:
    """Revoke a token by its id or name. It takes at most two seconds."""
    await service.writer.run(lambda: service.tokens.revoke(token_id))
    return Response(status_code=204)


_TIMES = ("made", "expires", "last_used", "revoked")
_SHOWN = ("id", "name", "owner", "scopes", "projects", *_TIMES)
"""What is shown of a token. Listed, so that whatever else may be stored of it stays hidden."""


def _token_json(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in _SHOWN}
