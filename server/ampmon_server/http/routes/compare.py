"""Several runs side by side: their charts on one axis, and tables of their configuration and results."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from ampmon_server.charts import View
from ampmon_server.charts.compared import COMPARED
from ampmon_server.charts.together import RUNS_MAX
from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import ServiceDependency, tagged_json
from ampmon_server.http.routes.callers import CallerDependency, visible
from ampmon_server.http.routes.figures import view_of
from ampmon_server.http.routes.queries import NO_NUL, RunIds
from ampmon_server.queries import comparing
from ampmon_server.queries.comparing import Reference


router = APIRouter(prefix="/api/v1/compare")


def _compared(
    runs: Annotated[RunIds, Query(min_length=1, max_length=RUNS_MAX)],
    caller: CallerDependency,
    service: ServiceDependency,
) -> list[UUID | None]:
    return visible(service, caller, list(dict.fromkeys(runs)))


Runs = Annotated[list[UUID | None], Depends(_compared)]


async def _reference(
    baseline: UUID | None = None,
    logged: Annotated[str | None, Query(alias="name", max_length=256, pattern=NO_NUL)] = None,
) -> Reference:
    return Reference(baseline, logged)


By = Annotated[Reference, Depends(_reference)]


@router.get("")
@requires("read")
def compare(runs: Runs, by: By, request: Request, service: ServiceDependency) -> Response:
    """Compare up to twenty runs: summaries (null for an unknown run), results and configuration.

    ``baseline`` is one of them, by default the first with the tag ``baseline``. ``distances`` says where each run's
    values of ``name``, by default its loss, [leave the band of the baseline](methods.md#band-of-a-baseline).
    """
    store = service.store
    compared = comparing.despite_deletion(
        store, runs, lambda there: comparing.compare(store, there, by)
    )
    return tagged_json(compared, request)


@router.get("/figures/{name}")
@requires("read")
def show_compared(
    name: Annotated[str, Path(json_schema_extra={"enum": list(COMPARED)})],
    runs: Runs,
    view: Annotated[View, Depends(view_of)],
    by: By,
    request: Request,
    service: ServiceDependency,
    smooth: Annotated[int | None, Query(ge=0, le=1000)] = None,
) -> Response:
    """Draw a chart of up to twenty runs. With ``x=time``, ``start`` and ``stop`` are us since each run's start.

    ``logged`` draws what was logged under the query's ``name``, or its running median of ``smooth`` columns.
    """
    store, view = service.store, replace(view, smooth=smooth)
    figure = comparing.despite_deletion(
        store, runs, lambda there: comparing.draw(store, there, name, view, by)
    )
    return tagged_json(figure, request)
