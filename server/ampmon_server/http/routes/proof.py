"""The route by which a client verifies the server before it sends a token over plain HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ampmon.transport.proof import ID_LENGTH, NONCE_LENGTH, PROOF_PATH
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem, refusals
from ampmon_server.http.routes.answers import ServiceDependency, json_answer


router = APIRouter()


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
