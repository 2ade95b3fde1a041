"""What describes this server: liveness, readiness, metrics and the OpenAPI document."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import PlainTextResponse, Response

from ampmon_server.http.auth.access import requires
from ampmon_server.http.gauges import RunMetrics, ServiceGauges
from ampmon_server.http.problems import problem
from ampmon_server.http.routes.answers import json_answer, tagged_json
from ampmon_server.http.routes.dependencies import CallerDependency, ServiceDependency
from ampmon_server.store import StoreError


router = APIRouter()


@router.get("/healthz")
@requires("token")
async def healthz() -> Response:
    """Check that the process answers."""
    return json_answer({"status": "ok"})


@router.get("/readyz")
@requires("token")
def readyz(service: ServiceDependency) -> Response:
    """Check the database, its schema and the notices between servers: 503 if one fails. ``parts`` says which."""
    troubles = service.readiness()
    parts = {part: why or "ok" for part, why in troubles.items()}
    if trouble := next(filter(None, troubles.values()), None):
        return problem(503, trouble, parts=parts)
    news = service.follower.way if service.follower else "own"
    return json_answer({"status": "ready", "news": news, "parts": parts})


@router.get("/metrics", response_class=PlainTextResponse)
@requires("read")
def metrics(service: ServiceDependency, caller: CallerDependency) -> Response:
    """Metrics of this process in Prometheus' format, and of running runs with ``--run-metrics``."""
    text = generate_latest(service.metrics.registry) + generate_latest(ServiceGauges(service))
    if service.settings.run_metrics:
        shown = RunMetrics(service.store, service.settings.run_metrics, caller.projects)
        with suppress(StoreError):  # `ampmon_ready` reports it
            text += generate_latest(shown)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/api/v1/openapi.json", include_in_schema=False)
@requires("read")
def show_document(request: Request) -> Response:
    """Return the OpenAPI document of this server."""
    return tagged_json(request.app.openapi(), request)
