"""What routes share as FastAPI dependencies: the service, the caller and its runs, and query parameters with bounds.

The guard stores the caller in the request's state. Every route of a run depends on `OF_RUN`. Routes of lists pass the
caller's projects on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from anyio import to_thread
from fastapi import Depends, Query, Request
from pydantic import BeforeValidator, GetCoreSchemaHandler

from ampmon.wire import COUNT_MAX
from ampmon_server.analysis.policy.scalers import BOUNDS
from ampmon_server.http.auth.access import Caller
from ampmon_server.http.service import Service
from ampmon_server.store import Belonging, NotFound


class NotAllowed(Exception):
    """The caller is known but may not do this; ``scope`` would allow it."""

    def __init__(self, detail: str, scope: str) -> None:
        super().__init__(detail)
        self.scope = scope


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_service)]


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


NO_NUL = r"^[^\x00]*$"
"""For text in database queries: PostgreSQL's text cannot contain a null character."""

Number = Annotated[int | None, Query(ge=0, le=COUNT_MAX)]
"""A step, or a time in microseconds since the epoch."""

StreamNumber = Annotated[
    int | None,
    Query(
        ge=0, le=COUNT_MAX, description="A stream of the run; its scaler is shown over all ranks."
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000)]
RowCursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,18}(-[0-9]{1,18}){3}$")]
"""Where the next page of a run's rows begins, as the page before gives it."""

ScalarName = Annotated[
    str | None,
    Query(max_length=256, pattern=NO_NUL, description="The value's name in `ampmon.log`."),
]

ParameterName = Annotated[
    str | None,
    Query(max_length=1024, pattern=NO_NUL, description="A parameter by its name in the model."),
]


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accepts only these names, as `Literal` does for names that are known to the type checker."""

    names: Collection[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return handler(Literal[tuple(self.names)])


def setting(name: str, alias: str | None = None) -> Any:
    """A numeric setting of a policy. The OpenAPI document shows its bounds; the policy enforces and explains them."""
    return Query(alias=alias, json_schema_extra=dict(BOUNDS[name]))


def _split(given: list[str]) -> list[str]:
    return [each for listed in given for each in listed.split(",")]


# Lists are comma-separated, as the OpenAPI document says of every list in a query.
RunIds = Annotated[list[UUID], BeforeValidator(_split)]
"""Ids of runs. Each route sets their maximum number."""
