"""One stream of news for the whole page: which runs have moved on, and to which version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Annotated
from uuid import UUID

import orjson
from anyio import to_thread
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response, StreamingResponse

from ampmon_server.bus import Advance
from ampmon_server.routes.answers import ServiceDependency
from ampmon_server.service import Service
from ampmon_server.store import BadQuery


router = APIRouter(prefix="/api/v1")

RUNS_MAX = 200
_EVENTS = "text/event-stream"
# Without the second, a proxy such as nginx would keep events until it had a bufferful.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_NOTHING = b": nothing new\n\n"


def _asked_for(
    runs: Annotated[str | None, Query(max_length=40 * RUNS_MAX)] = None,
) -> list[UUID] | None:
    if not runs:
        return None
    try:
        return [UUID(run) for run in runs.split(",")]
    except ValueError:
        raise BadQuery("runs", "run ids, separated by commas") from None


@router.get("/live")
async def follow(
    service: ServiceDependency, asked: Annotated[list[UUID] | None, Depends(_asked_for)]
) -> Response:
    """`advance` {run, version, step}: on connecting for each run asked for, or all, then whenever one moves on."""
    return StreamingResponse(_events(service, asked), headers=_HEADERS, media_type=_EVENTS)


async def _events(service: Service, asked: list[UUID] | None) -> AsyncIterator[bytes]:
    with service.bus.listen(asked) as listener:
        # Asked after listening, so that nothing falls between; a run may then be told of twice.
        known = await to_thread.run_sync(service.store.versions, asked)
        yield b"".join(_told(Advance(*each)) for each in known) or _NOTHING
        async for advances in listener.advances():
            yield b"".join(map(_told, advances)) or _NOTHING


@lru_cache(maxsize=1024)
def _told(advance: Advance) -> bytes:
    """An event, made once for all who are told of it."""
    run_id, version, step = advance
    data = orjson.dumps({"run": str(run_id), "version": version, "step": step})
    return b"event: advance\ndata: " + data + b"\n\n"
