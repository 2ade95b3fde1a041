"""Whether the server lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ampmon_server.problems import problem
from ampmon_server.routes.answers import ServiceDependency, json_answer


router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """The process answers."""
    return json_answer({"status": "ok"})


@router.get("/readyz")
def readyz(service: ServiceDependency) -> Response:
    """The database answers, its schema is the newest, and news are passed on."""
    service.store.check()
    if service.bus.closed:
        return problem(503, "The server is stopping.")
    return json_answer({"status": "ready"})
