"""What describes this server: liveness, readiness, metrics and the OpenAPI document.

Metrics of the server and of running runs are computed when they are requested, and cost nothing before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from ampmon_server.alerting.messages import TROUBLES
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem
from ampmon_server.http.routes.answers import json_answer, tagged_json
from ampmon_server.http.service import CallerDependency, Service, ServiceDependency
from ampmon_server.store import Store, StoreError, Summary, Wanted
from ampmon_server.store.engine.numbers import KINDS, join


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


@dataclass(frozen=True, slots=True)
class ServiceGauges(Collector):
    """Metrics of an open server. They name no project, run or owner: any token with the scope `read` sees them."""

    service: Service

    def collect(self) -> Iterator[Metric]:
        yield from _queues(self.service)
        yield from _judging(self.service)
        yield from _alerting(self.service)
        yield from _forwarding(self.service)
        yield from _database(self.service)


def _queues(service: Service) -> Iterator[Metric]:
    yield _gauge("event_streams", "Open event streams.", service.bus.listeners)
    yield _gauge("writers_waiting", "Writes that are running or waiting.", service.writer.waiting)
    yield _gauge(
        "writers_waiting_bytes",
        "Bytes of request bodies that are arriving or waiting to be written.",
        service.writer.waiting_bytes,
    )
    limited = CounterMetricFamily(
        "ampmon_limited", "Requests rejected with 429, by limit.", labels=["limit"]
    )
    for limit, refused in service.limits.refused.items():
        limited.add_metric([limit], refused)
    yield limited
    if service.certificate is not None:
        yield _gauge(
            "certificate_end_seconds",
            "Expiry of the TLS certificate, in seconds since the epoch.",
            service.certificate.ends_s,
        )


def _judging(service: Service) -> Iterator[Metric]:
    judge = service.judge
    yield _counter("judgements", "Checks of runs for findings.", judge.looks)
    yield _counter("judgement_seconds", "Processor time of these checks.", judge.seconds)
    failed = sum(list(judge.failed.values()))
    yield _counter(
        "judgement_failures", "Checks and rules that failed; the log says which.", failed
    )
    yield _gauge(
        "judgement_late_seconds",
        "How long the most overdue run has waited for its check.",
        judge.late_s,
    )


def _alerting(service: Service) -> Iterator[Metric]:
    alert_sender = service.alert_sender
    attempts = CounterMetricFamily(
        "ampmon_alert_messages",
        "Attempts to send an alert message, by outcome.",
        labels=["outcome"],
    )
    attempts.add_metric(["sent"], alert_sender.sent)
    for trouble in TROUBLES:
        attempts.add_metric([trouble], alert_sender.failed[trouble])
    yield attempts
    with suppress(StoreError):  # `ampmon_ready`, below, reports it
        yield _gauge(
            "alerts_firing",
            "Firing alerts of all runs that nobody has acknowledged.",
            service.store.firing(),
        )
        late = sum(each.late for each in service.store.target_states().values())
        yield _gauge(
            "alert_messages_waiting", "Alert messages that are overdue or failed to send.", late
        )


def _forwarding(service: Service) -> Iterator[Metric]:
    if not service.forwarders:
        return
    to = ["destination"]
    points = CounterMetricFamily("ampmon_forward_points", "Forwarded points.", labels=to)
    failures = CounterMetricFamily("ampmon_forward_failures", "Failed attempts.", labels=to)
    waiting = GaugeMetricFamily(
        "ampmon_forward_runs_waiting",
        "Runs that are not completely forwarded, up to 64.",
        labels=to,
    )
    up = GaugeMetricFamily(
        "ampmon_forward_up", "1 if the destination is available, else 0.", labels=to
    )
    for each in service.forwarders:
        points.add_metric([each.label], each.points)
        failures.add_metric([each.label], each.failed)
        waiting.add_metric([each.label], each.waiting)
        up.add_metric([each.label], each.up)
    yield from (points, failures, waiting, up)


def _database(service: Service) -> Iterator[Metric]:
    begun = time.perf_counter()
    ready = GaugeMetricFamily("ampmon_ready", "1 if the part is ready, else 0.", labels=["part"])
    for part, why in service.readiness().items():
        ready.add_metric([part], why is None)
    yield ready
    yield _gauge(
        "ready_check_seconds",
        "Time that the readiness check took, mostly in the database.",
        time.perf_counter() - begun,
    )
    size = service.store.file_bytes()
    if size is not None:
        yield _gauge("database_bytes", "Size of the SQLite file.", size)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ampmon_{name}", documentation, value)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(f"ampmon_{name}", documentation, value)


LABELS = ("run", "project", "name")

_GAUGES = (
    ("scale", "Loss scale.", "scale"),
    ("zero_ratio", "Share of gradient elements that are zero.", "zero_fraction"),
    ("subnormal_ratio", "Share of gradient elements that are subnormal.", "subnormal_fraction"),
    ("headroom_bits", "Bits between the largest scaled gradient and 65504.", "headroom_bits"),
    ("overhead_ratio", "Share of the training time that monitoring takes.", "overhead"),
)
_COUNTERS = (
    ("updates", "Updates.", "updates"),
    ("skipped_updates", "Skipped updates.", "skipped"),
    ("lost_records", "Records that are known to be missing.", "lost_records"),
)


@dataclass(frozen=True, slots=True)
class RunMetrics(Collector):
    """Metrics of the newest ``limit`` running runs, of ``projects`` or, if that is None, of all."""

    store: Store
    limit: int
    projects: Collection[str] | None

    def collect(self) -> Iterator[Metric]:
        wanted = Wanted(status="running", projects=self.projects)
        listed = self.store.runs(wanted, limit=self.limit)
        yield GaugeMetricFamily(
            "ampmon_runs_running",
            "Running runs, including those without values here.",
            listed.total,
        )
        for name, documentation, field in _COUNTERS:
            counter = CounterMetricFamily(f"ampmon_run_{name}", documentation, labels=LABELS)
            for run in listed.rows:
                counter.add_metric(_labels(run), getattr(run, field))
            yield counter
        for name, documentation, field in _GAUGES:
            gauge = GaugeMetricFamily(f"ampmon_run_{name}", documentation, labels=LABELS)
            for run in listed.rows:
                value = join(getattr(run, field), KINDS.index(getattr(run, f"{field}_kind", None)))
                if value is not None:
                    gauge.add_metric(_labels(run), value)
            yield gauge


def _labels(run: Summary) -> tuple[str, str, str]:
    return run.run_id, run.project, run.name
