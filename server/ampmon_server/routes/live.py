"""One stream of news for the whole page: which runs have moved on, and to which version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

from anyio import to_thread
from fastapi import APIRouter, Depends, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from ampmon_server.bus import Advance
from ampmon_server.routes.answers import ServiceDependency
from ampmon_server.store import BadQuery


router = APIRouter(prefix="/api/v1")

RUNS_MAX = 200


def _asked_for(
    runs: Annotated[str | None, Query(max_length=40 * RUNS_MAX)] = None,
) -> list[UUID] | None:
    if not runs:
        return None
    try:
        return [UUID(run) for run in runs.split(",")]
    except ValueError:
        raise BadQuery("runs", "run ids, separated by commas") from None


@router.get("/live", response_class=EventSourceResponse)
async def follow(
    service: ServiceDependency, asked: Annotated[list[UUID] | None, Depends(_asked_for)]
) -> AsyncIterator[ServerSentEvent]:
    """`advance` {run, version, step}: on connecting for each run asked for, or all, then whenever one moves on."""
    with service.bus.listen(asked) as listener:
        # Asked after listening, so that nothing falls between; a run may then be told of twice.
        for known in await to_thread.run_sync(service.store.versions, asked):
            yield _told(Advance(*known))
        async for advances in listener.advances():
            for advance in advances:
                yield _told(advance)


def _told(advance: Advance) -> ServerSentEvent:
    run_id, version, step = advance
    return ServerSentEvent(
        event="advance", data={"run": str(run_id), "version": version, "step": step}
    )
