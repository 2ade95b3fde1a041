"""One stream of server-sent events for the whole page: which runs have advanced, and to which version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Annotated
from uuid import UUID

import orjson
from anyio import to_thread
from fastapi import APIRouter, Depends, Query
from starlette.responses import Response, StreamingResponse

from ampmon_server.background.bus import QUIET_S
from ampmon_server.http.auth.access import OWN, Caller, requires
from ampmon_server.http.auth.tokens import KNOWN_S
from ampmon_server.http.routes.parameters import RunIds
from ampmon_server.http.service import CallerDependency, Service, ServiceDependency
from ampmon_server.store import Advance, Store, StoreError


router = APIRouter(prefix="/api/v1")

RUNS_MAX = 200
# Without the second header, nginx would hold events back until its buffer is full.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_NOTHING = b": nothing new\n\n"


class _Stream(StreamingResponse):
    media_type = "text/event-stream"


async def _place(caller: CallerDependency, service: ServiceDependency) -> AsyncIterator[None]:
    """Hold a place among the streams of a token until the response ends. Raises TooManyAttempts."""
    with service.limits.stream(caller.token_id):
        yield


@router.get("/live", dependencies=[Depends(_place)], response_class=_Stream)
@requires("read")
async def follow(
    service: ServiceDependency,
    caller: CallerDependency,
    asked: Annotated[RunIds | None, Query(alias="runs", min_length=1, max_length=RUNS_MAX)] = None,
) -> Response:
    """Stream server-sent events `advance` {run, version, step}: one per run at the start, then one per change."""
    return _Stream(_events(service, caller, asked), headers=_HEADERS)


async def _events(
    service: Service, caller: Caller, asked: list[UUID] | None
) -> AsyncIterator[bytes]:
    seen = _Seen(service.store, caller)
    quiet_s = QUIET_S if caller.token_id == OWN else KNOWN_S
    with service.bus.listen(asked) as listener:
        # Query after listening, so that no change is missed. A run may then be announced twice.
        known = await seen.at_first(asked)
        yield b"".join(map(_event, known)) or _NOTHING
        async for advances in listener.advances(quiet_s):
            if not await _is_known(service, caller):
                return
            yield b"".join(map(_event, await seen.of(advances))) or _NOTHING


async def _is_known(service: Service, caller: Caller) -> bool:
    """Whether token and session are still valid. While the database does not answer, they count as valid."""
    try:
        return await service.callers.is_known(caller)
    except StoreError:
        return True


class _Seen:
    """Filters advances by the runs that a caller may see. Costs no query for a caller who sees all projects."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self._store = store
        self._projects = caller.projects
        self._shown: set[UUID] = set()

    async def at_first(self, asked: list[UUID] | None) -> list[Advance]:
        """The current versions of the ``asked`` runs, or of the newest ones if that is None."""
        known = await to_thread.run_sync(self._versions, asked, 1000)
        if self._projects is not None:
            self._shown.update(run_id for run_id, _, _ in known)
        return known

    async def of(self, advances: list[Advance]) -> list[Advance]:
        """The advances to send, including the last one of a run that was shown and is gone."""
        if self._projects is None or not advances:
            return advances
        asked = [each.run_id for each in advances]
        known = await to_thread.run_sync(self._versions, asked, len(asked))
        there = {run_id for run_id, _, _ in known}
        visible = [each for each in advances if each.run_id in there | self._shown]
        self._shown.difference_update(asked)
        self._shown |= there
        return visible

    def _versions(self, asked: list[UUID] | None, limit: int) -> list[Advance]:
        return self._store.versions(asked, limit, self._projects)


@lru_cache(maxsize=1024)
def _event(advance: Advance) -> bytes:
    """Encode an advance as a server-sent event, once for all clients."""
    run_id, version, step = advance
    data = orjson.dumps({"run": str(run_id), "version": version, "step": step})
    return b"event: advance\ndata: " + data + b"\n\n"
