"""Several runs side by side: their charts on one axis, and tables of what differs and what came of them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from ampmon_server import comparing
from ampmon_server.auth.access import requires
from ampmon_server.figures import View
from ampmon_server.figures.compared import COMPARED, RUNS_MAX
from ampmon_server.routes.answers import ServiceDependency, tagged_json
from ampmon_server.routes.callers import CallerDependency, visible
from ampmon_server.routes.figures import view_of
from ampmon_server.routes.queries import RunIds


router = APIRouter(prefix="/api/v1/compare")


def _compared(
    runs: Annotated[RunIds, Query(min_length=1, max_length=RUNS_MAX)],
    caller: CallerDependency,
    service: ServiceDependency,
) -> list[UUID | None]:
    return visible(service, caller, list(dict.fromkeys(runs)))


Runs = Annotated[list[UUID | None], Depends(_compared)]


@router.get("")
@requires("read")
def compare(runs: Runs, request: Request, service: ServiceDependency) -> Response:
    """Compare up to eight runs: summaries (null for an unknown run), results and configuration."""
    return tagged_json(comparing.compare(service.store, runs), request)


@router.get("/figures/{name}")
@requires("read")
def show_compared(
    name: Annotated[str, Path(json_schema_extra={"enum": list(COMPARED)})],
    runs: Runs,
    view: Annotated[View, Depends(view_of)],
    request: Request,
    service: ServiceDependency,
) -> Response:
    """Draw a chart of up to eight runs. With ``x=time``, ``start`` and ``stop`` are us since each run's start."""
    return tagged_json(comparing.draw(service.store, runs, name, view), request)
