"""Access tokens: routes with which an administrator creates, lists and revokes them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from ampmon import wire
from ampmon_server.http.auth.access import requires
from ampmon_server.http.auth.caller import Scope
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes.answers import ServiceDependency, json_answer, takes
from ampmon_server.http.routes.bodies import read_json
from ampmon_server.http.routes.callers import OVER_ALL
from ampmon_server.http.routes.queries import NO_NUL
from ampmon_server.store import Token


router = APIRouter(prefix="/api/v1/tokens", dependencies=[OVER_ALL])

_BODY_BYTES_MAX = 64 * 1024
_Called = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.@+-]{1,64}\Z")]
_Scopes = Annotated[frozenset[Scope], msgspec.Meta(min_length=1)]
_Projects = Annotated[frozenset[wire.Label], msgspec.Meta(min_length=1, max_length=64)]


class _WantedToken(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create. ``projects`` is null for all. ``expires`` is in us since the epoch, null for never."""

    name: _Called
    owner: wire.Label
    scopes: _Scopes
    projects: _Projects | None = None
    expires: Annotated[int, msgspec.Meta(ge=0, le=wire.COUNT_MAX)] | None = None


@router.get("")
@requires("admin")
def list_tokens(service: ServiceDependency) -> Response:
    """List all tokens, newest first, with secrets hidden."""
    return json_answer({"tokens": [_token_json(each) for each in service.store.tokens()]})


@router.post(
    "", status_code=201, responses=refusals(408, 409, 413), openapi_extra=takes(_WantedToken)
)
@requires("admin")
async def make_token(request: Request, service: ServiceDependency) -> Response:
    """Create a token. This answer alone shows its secret. 409 if a valid token has the name."""
    wanted = await read_json(request, service, _WantedToken, _BODY_BYTES_MAX)
    if isinstance(wanted, Response):
        return wanted
    if wanted.expires is not None and wanted.expires <= time.time() * 1e6:
        return problem(422, "The expiry is in the past.", field="expires")
    secret, token = await service.writer.run(
        lambda: service.tokens.new(
            wanted.name, wanted.owner, sorted(wanted.scopes), wanted.projects, wanted.expires
        )
    )
    return json_answer({"token": secret, **_token_json(token)}, status=201)


@router.delete("/{id}", status_code=204)
@requires("admin")
async def revoke_token(
    token_id: Annotated[str, Path(alias="id", pattern=NO_NUL)], service: ServiceDependency
) -> Response:
    """Revoke a token by its id or name. It takes at most two seconds."""
    await service.writer.run(lambda: service.tokens.revoke(token_id))
    return Response(status_code=204)


def _token_json(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "owner": token.owner,
        "scopes": token.scopes,
        "projects": token.projects,
        "made": token.made,
        "expires": token.expires,
        "last_used": token.last_used,
        "revoked": token.revoked,
    }
