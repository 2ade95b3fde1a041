"""Dependencies that check which runs a caller may see and change. The guard stores the caller in the request's state.

Every route of a run depends on `OF_RUN`. Routes of lists pass the caller's projects on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from anyio import to_thread
from fastapi import Depends, Request

from ampmon_server.http.auth import Caller
from ampmon_server.http.routes.answers import ServiceDependency
from ampmon_server.http.service import Service
from ampmon_server.store import Belonging, NotFound


class NotAllowed(Exception):
    """The caller is known but may not do this; ``scope`` would allow it."""

    def __init__(self, detail: str, scope: str) -> None:
        super().__init__(detail)
        self.scope = scope


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerDependency = Annotated[Caller, Depends(_caller)]


async def _seen(run_id: UUID, caller: CallerDependency, service: ServiceDependency) -> None:
    """Raise NotFound for a run of a project that the caller does not see, as if it did not exist."""
    if caller.projects is not None:
        await to_thread.run_sync(_belonging, service, caller, run_id)


OF_RUN = Depends(_seen)
"""Rejects callers who may not see the run. Costs no query for a caller who sees all projects."""


async def _own(run_id: UUID, caller: CallerDependency, service: ServiceDependency) -> None:
    """Raise NotAllowed for a run of another owner, NotFound if the caller may not even see it."""
    if not caller.may("admin"):
        await check_own(service, caller, run_id)


async def check_own(service: Service, caller: Caller, run_id: UUID) -> None:
    """Raise NotAllowed if the caller may not change a run, NotFound if the caller may not even see it."""
    run = await to_thread.run_sync(_belonging, service, caller, run_id)
    if caller.may("admin") or run.owner == caller.owner:
        return
    if not caller.may("read"):
        raise _missing(run_id)
    raise NotAllowed(
        "Changing a run needs its owner's token, or one with the scope `admin`.", "admin"
    )


OF_OWN_RUN = Depends(_own)
"""Rejects callers who may not change the run. List it after `OF_RUN`."""


async def _over_all(caller: CallerDependency) -> None:
    """Raise NotAllowed for a caller limited to some projects: a token that they make could open others."""
    if caller.projects is not None:
        raise NotAllowed("This needs a token with the scope `admin` over all projects.", "admin")


OVER_ALL = Depends(_over_all)


def visible(service: Service, caller: Caller, run_ids: Sequence[UUID]) -> list[UUID | None]:
    """Return the same ids, with None for each run that the caller may not see. Blocks."""
    if caller.projects is None:
        return list(run_ids)
    found: list[UUID | None] = []
    for run_id in run_ids:
        try:
            _belonging(service, caller, run_id)
        except NotFound:
            found.append(None)
        else:
            found.append(run_id)
    return found


def _belonging(service: Service, caller: Caller, run_id: UUID) -> Belonging:
    belonging = service.store.belonging(run_id)
    if not caller.sees(belonging.project):
        raise _missing(run_id)
    return belonging


def _missing(run_id: UUID) -> NotFound:
    """The error for a missing run, and in the same words for one that the caller may not see."""
    return NotFound(f"There is no run {run_id}.")
