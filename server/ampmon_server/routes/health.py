"""Whether the server lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ampmon_server.problems import problem
from ampmon_server.routes.answers import ServiceDependency, json_answer
from ampmon_server.store import Unusable


router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """The process answers."""
    return json_answer({"status": "ok"})


@router.get("/readyz")
def readyz(service: ServiceDependency) -> Response:
    """The database answers, its schema is this version's, and news are passed on, by the way that is told."""
    try:
        service.store.check()
    except Unusable as error:
        return problem(503, str(error))
    if service.bus.closed:
        return problem(503, "The server is stopping.")
    follower = service.follower
    if follower is not None and follower.trouble is not None:
        return problem(503, f"Other server processes' news cannot be read: {follower.trouble}")
    return json_answer({"status": "ready", "news": follower.way if follower else "own"})
