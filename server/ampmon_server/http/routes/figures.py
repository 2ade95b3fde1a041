"""The figures of a run as Plotly JSON, and several runs side by side: figures, configuration and results."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from ampmon_server.analysis.policy.scalers import Kind
from ampmon_server.charts import FIGURES, View
from ampmon_server.charts.compared import COMPARED
from ampmon_server.charts.together import RUNS_MAX
from ampmon_server.http.auth.access import requires
from ampmon_server.http.routes.answers import tagged_json
from ampmon_server.http.routes.parameters import (
    NO_NUL,
    Number,
    OneOf,
    ParameterName,
    RunIds,
    StreamNumber,
    setting,
)
from ampmon_server.http.service import OF_RUN, CallerDependency, ServiceDependency, visible
from ampmon_server.model.parameter_statistics import STATISTICS
from ampmon_server.queries import comparing
from ampmon_server.queries.comparing import Reference
from ampmon_server.queries.drawing import draw
from ampmon_server.queries.sources import ChartRequest
from ampmon_server.store import BadQuery


router = APIRouter(prefix="/api/v1")


async def view_of(
    start: Number = None,
    stop: Number = None,
    width: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    x: Literal["step", "time", "user"] = "step",
    format: Literal["fp16", "bf16", "e4m3", "e5m2"] = "fp16",
    y: Literal["linear", "log"] = "linear",
    zone: Annotated[int | None, Query(ge=-1440, le=1440)] = None,
    position: Literal["alone", "stacked", "last"] = "alone",
) -> View:
    if start is not None and stop is not None and stop <= start:
        raise BadQuery("stop", "it must be greater than start")
    return View(start, stop, width, x, format, y, zone, position)


async def _replay(
    policy: Annotated[Kind | None, Query(alias="sim_policy")] = None,
    init_scale: Annotated[float | None, setting("init_scale", "sim_init_scale")] = None,
    growth_factor: Annotated[float | None, setting("growth_factor", "sim_growth_factor")] = None,
    backoff_factor: Annotated[float | None, setting("backoff_factor", "sim_backoff_factor")] = None,
    growth_interval: Annotated[
        int | None, setting("growth_interval", "sim_growth_interval")
    ] = None,
) -> dict[str, float | str | None]:
    return {
        "policy": policy,
        "init_scale": init_scale,
        "growth_factor": growth_factor,
        "backoff_factor": backoff_factor,
        "growth_interval": growth_interval,
    }


async def _asked(  # noqa: PLR0913, PLR0917 - one argument per query parameter
    view: Annotated[View, Depends(view_of)],
    replay: Annotated[dict[str, float | str | None], Depends(_replay)],
    statistic: Annotated[str, OneOf(STATISTICS)] = "subnormal",
    parameter: ParameterName = None,
    search: Annotated[str, Query(max_length=256, pattern=NO_NUL)] = "",
    group: Literal["parameter", "module", "block"] | None = None,
    stream: StreamNumber = None,
    logged: Annotated[str | None, Query(alias="name", max_length=256, pattern=NO_NUL)] = None,
    whatif_scale: Annotated[int | None, Query(ge=-8, le=32)] = None,
    rank: Number = None,
) -> ChartRequest:
    view = replace(
        view,
        statistic=statistic,
        search=search,
        level=group,
        parameter=parameter,
        whatif_scale=whatif_scale,
    )
    return ChartRequest(view, stream, logged, replay, rank)


@router.get("/runs/{run_id}/figures/{name}", dependencies=[OF_RUN])
@requires("read")
def show_figure(
    run_id: UUID,
    name: Annotated[str, Path(json_schema_extra={"enum": list(FIGURES)})],
    request: Request,
    service: ServiceDependency,
    asked: Annotated[ChartRequest, Depends(_asked)],
) -> Response:
    """Draw a figure of the updates with ``start`` <= x < ``stop``, ``width`` pixels wide.

    See [figures](#figures) for the names and their options.
    """
    asked = replace(asked, thresholds=service.settings.thresholds)
    return tagged_json(draw(service.store, run_id, name, asked), request)


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


@router.get("/compare")
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


@router.get("/compare/figures/{name}")
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
