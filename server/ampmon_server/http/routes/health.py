"""Health routes: liveness, readiness and metrics."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from starlette.responses import PlainTextResponse, Response

from ampmon_server.http import readiness
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem
from ampmon_server.http.routes.answers import MetricsDependency, ServiceDependency, json_answer
from ampmon_server.http.routes.callers import CallerDependency
from ampmon_server.http.run_metrics import RunMetrics
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
    found = readiness.look(service)
    parts = {part: why or "ok" for part, why in found.parts.items()}
    if found.trouble is not None:
        return problem(503, found.trouble, parts=parts)
    news = service.follower.way if service.follower else "own"
    return json_answer({"status": "ready", "news": news, "parts": parts})


@router.get("/metrics", response_class=PlainTextResponse)
@requires("read")
def metrics(
    metrics: MetricsDependency, service: ServiceDependency, caller: CallerDependency
) -> Response:
    """Metrics of this process in Prometheus' format, and of running runs with ``--run-metrics``."""
    text = generate_latest(metrics.registry)
    if service.settings.run_metrics:
        runs = CollectorRegistry()
        shown = RunMetrics(service.store, service.settings.run_metrics, caller.projects)
        with suppress(StoreError):  # `ampmon_ready` reports it
            runs.register(shown)
            text += generate_latest(runs)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
