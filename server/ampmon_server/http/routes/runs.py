"""The list of runs, a single run, and the changes that a user may make to it."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Query, Request
from starlette.background import BackgroundTask
from starlette.responses import Response

from ampmon_server.background.upkeep import clear
from ampmon_server.charts.sparkline import sparkline
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import refusals
from ampmon_server.http.routes.answers import json_answer, standings_json, tagged_json
from ampmon_server.http.routes.bodies import read_json, takes
from ampmon_server.http.routes.parameters import NO_NUL, Limit, RunIds
from ampmon_server.http.service import (
    OF_OWN_RUN,
    OF_RUN,
    CallerDependency,
    ServiceDependency,
    visible,
)
from ampmon_server.model.readouts import budget_advice, choices, health_words, readouts
from ampmon_server.queries.comparing import loss_of
from ampmon_server.store import Advance, Edit, Sort, Status, Wanted
from ampmon_server.store.updates.ranks import ALONE


router = APIRouter(prefix="/api/v1")

_EDIT_BYTES_MAX = 64 * 1024
SCALES_MAX = 100


@router.get("/runs")
@requires("read")
def list_runs(  # noqa: PLR0913, PLR0917 - one argument per query parameter
    request: Request,
    service: ServiceDependency,
    caller: CallerDependency,
    project: Annotated[str | None, Query(max_length=256, pattern=NO_NUL)] = None,
    status: Status | None = None,
    tag: Annotated[str | None, Query(max_length=256, pattern=NO_NUL)] = None,
    search: Annotated[str, Query(max_length=256, pattern=NO_NUL)] = "",
    archived: bool = False,
    sort: Sort = "started",
    order: Literal["ascending", "descending"] = "descending",
    limit: Limit = 100,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}-[0-9a-f]{32}$")] = None,
) -> Response:
    """List the summaries of runs, and their number in ``total``.

    Each word of ``search`` matches a part of a name, project, owner or tag.
    """
    wanted = Wanted(
        project, status, tag, search, archived, sort, order == "ascending", caller.projects
    )
    page = service.store.runs(wanted, limit=limit, offset=offset, cursor=cursor)
    answer = {
        "runs": page.rows,
        "next": page.next,
        "total": page.total,
        "refused": service.refusals.recent(),
    }
    return tagged_json(answer, request)


@router.get("/runs/groups")
@requires("read")
def list_groups(
    request: Request, service: ServiceDependency, caller: CallerDependency, archived: bool = False
) -> Response:
    """List projects and tags, each with its number of runs."""
    return tagged_json(service.store.groups(archived=archived, within=caller.projects), request)


@router.get("/runs/scales")
@requires("read")
def list_scales(
    request: Request,
    service: ServiceDependency,
    caller: CallerDependency,
    runs: Annotated[RunIds, Query(min_length=1, max_length=SCALES_MAX)],
) -> Response:
    """Draw the scale of up to 100 runs as SVG paths in a box of 96 by 24; null before the first update."""
    cells = service.store.scales(runs, caller.projects)
    return tagged_json({str(run_id): sparkline(each) for run_id, each in cells.items()}, request)


@router.get("/runs/losses")
@requires("read")
def list_losses(
    request: Request,
    service: ServiceDependency,
    caller: CallerDependency,
    runs: Annotated[RunIds, Query(min_length=1, max_length=SCALES_MAX)],
) -> Response:
    """Show the newest and the least loss of up to 100 runs; null if none was logged.

    The loss is the first logged name that contains ``loss``.
    """
    seen = [run_id for run_id in visible(service, caller, runs) if run_id is not None]
    return tagged_json({str(run_id): loss_of(service.store, run_id) for run_id in seen}, request)


@router.get("/runs/{run_id}", dependencies=[OF_RUN])
@requires("read")
def show_run(run_id: UUID, request: Request, service: ServiceDependency) -> Response:
    """Show a run: its summary, who reported (``identity``), and its alerts, null if the server sends none.

    ``numbers`` are the page's: ``value`` and ``more`` in words, and ``exact`` with all digits, or null. With ``since``,
    the page shows the age of that time instead of the value. ``recording`` is the state of the recording in words, and
    ``advice`` what to do if monitoring exceeds its budget, else empty. ``choices`` are query parameters of figures, for
    a scaler and for a rank, each with the values it can have and their words.
    """
    summary, identity = service.store.run(run_id)
    document = orjson.loads(orjson.dumps(summary))
    alerting = service.settings.alerts is not None
    alerts = standings_json(service.store.alerts(run_id)) if alerting else None
    answer = {
        **document,
        "identity": identity,
        "alerts": alerts,
        "numbers": {key: each._asdict() for key, each in readouts(document).items()},
        "recording": health_words(document),
        "advice": budget_advice(document),
        "choices": choices(document, ALONE),
    }
    return tagged_json(answer, request)


@router.patch(
    "/runs/{run_id}",
    dependencies=[OF_OWN_RUN],
    responses=refusals(408, 413),
    openapi_extra=takes(Edit),
)
@requires("ingest")
async def edit_run(run_id: UUID, request: Request, service: ServiceDependency) -> Response:
    """Change the name, the tags or the archived state of a run. Returns the new summary."""
    edit = await read_json(request, service.settings, Edit, _EDIT_BYTES_MAX)
    summary = await service.writer.run(lambda: service.store.edit(run_id, edit))
    service.publish(Advance(run_id, summary.version, summary.last_step))
    return json_answer(summary)


@router.delete("/runs/{run_id}", status_code=204, dependencies=[OF_OWN_RUN])
@requires("ingest")
async def delete_run(run_id: UUID, service: ServiceDependency) -> Response:
    """Delete a run for good. Records that arrive later are acknowledged and not stored."""
    service.publish(await service.writer.run(lambda: service.store.delete(run_id)))
    clearing = BackgroundTask(clear, service.store, service.writer, run_id)
    return Response(status_code=204, background=clearing)
