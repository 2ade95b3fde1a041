"""What describes this server: liveness, readiness, metrics and the OpenAPI document.

Metrics of the server and of running runs are computed when they are requested, and cost nothing before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from ampmon_server.alerting.messages import TROUBLES
from ampmon_server.background.diagnosis_worker import DiagnosisWorker
from ampmon_server.background.forwarding.forwarder import Forwarder
from ampmon_server.http.auth.access import requires
from ampmon_server.http.problems import problem
from ampmon_server.http.routes.answers import json_answer, tagged_json
from ampmon_server.http.service import CallerDependency, Service, ServiceDependency
from ampmon_server.store import Store, StoreError, Wanted
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
    """Check the database, its schema and the news of other servers: 503 if one fails. ``parts`` says which."""
    troubles = service.readiness()
    parts = {part: why or "ok" for part, why in troubles.items()}
    if trouble := next(filter(None, troubles.values()), None):
        return problem(503, trouble, parts=parts)
    news = "polling" if service.follower else "own"
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
        yield from _judging(self.service.judge)
        yield from _alerting(self.service)
        yield from _forwarding(self.service.forwarders)
        yield from _database(self.service)


def _queues(service: Service) -> Iterator[Metric]:
    yield _gauge("event_streams", "Open event streams.", service.bus.listeners)
    yield _gauge("writers_waiting", "Writes that are running or waiting.", service.writer.waiting)
    says = "Bytes of request bodies that are arriving or waiting to be written."
    yield _gauge("writers_waiting_bytes", says, service.writer.waiting_bytes)
    says = "Requests rejected with 429, by limit."
    yield _each(CounterMetricFamily, "limited", says, "limit", service.limits.refused.items())
    if service.certificate is not None:
        says = "Expiry of the TLS certificate, in seconds since the epoch."
        yield _gauge("certificate_end_seconds", says, service.certificate.ends_s)


def _judging(judge: DiagnosisWorker) -> Iterator[Metric]:
    yield _counter("judgements", "Checks of runs for findings.", judge.looks)
    yield _counter("judgement_seconds", "Processor time of these checks.", judge.seconds)
    says = "Checks and rules that failed; the log says which."
    # Copied in one step: the worker's thread may add a key meanwhile.
    yield _counter("judgement_failures", says, sum(list(judge.failed.values())))
    says = "How long the most overdue run has waited for its check."
    yield _gauge("judgement_late_seconds", says, judge.late_s)


def _alerting(service: Service) -> Iterator[Metric]:
    sender, says = service.alert_sender, "Attempts to send an alert message, by outcome."
    outcomes = [("sent", sender.sent), *((each, sender.failed[each]) for each in TROUBLES)]
    yield _each(CounterMetricFamily, "alert_messages", says, "outcome", outcomes)
    with suppress(StoreError):  # `ampmon_ready`, below, reports it
        says = "Firing alerts of all runs that nobody has acknowledged."
        yield _gauge("alerts_firing", says, service.store.firing())
        late = sum(each.late for each in service.store.target_states().values())
        says = "Alert messages that are overdue or failed to send."
        yield _gauge("alert_messages_waiting", says, late)


def _forwarding(forwarders: Sequence[Forwarder]) -> Iterator[Metric]:
    if not forwarders:
        return

    def values(name: str) -> list[tuple[str, float]]:
        return [(each.label, getattr(each, name)) for each in forwarders]

    counted, state, to = CounterMetricFamily, GaugeMetricFamily, "destination"
    yield _each(counted, "forward_points", "Forwarded points.", to, values("points"))
    yield _each(counted, "forward_failures", "Failed attempts.", to, values("failed"))
    says = "Runs that are not completely forwarded, up to 64."
    yield _each(state, "forward_runs_waiting", says, to, values("waiting"))
    says = "1 if the destination is available, else 0."
    yield _each(state, "forward_up", says, to, values("up"))


def _database(service: Service) -> Iterator[Metric]:
    begun = time.perf_counter()
    ready = [(part, why is None) for part, why in service.readiness().items()]
    yield _each(GaugeMetricFamily, "ready", "1 if the part is ready, else 0.", "part", ready)
    says = "Time that the readiness check took, mostly in the database."
    yield _gauge("ready_check_seconds", says, time.perf_counter() - begun)
    size = service.store.file_bytes()
    if size is not None:
        yield _gauge("database_bytes", "Size of the SQLite file and its log.", size)


Family: TypeAlias = "type[CounterMetricFamily] | type[GaugeMetricFamily]"


def _gauge(name: str, says: str, value: float) -> Metric:
    return GaugeMetricFamily(f"ampmon_{name}", says, value)


def _counter(name: str, says: str, value: float) -> Metric:
    return CounterMetricFamily(f"ampmon_{name}", says, value)


def _each(
    kind: Family, name: str, says: str, label: str, values: Iterable[tuple[str, float]]
) -> Metric:
    """A metric with a value for each value of a label."""
    family = kind(f"ampmon_{name}", says, labels=[label])
    for each, value in values:
        family.add_metric([each], value)
    return family


_LABELS = ("run", "project", "name")
_COUNTERS = (
    ("updates", "Updates.", "updates"),
    ("skipped_updates", "Skipped updates.", "skipped"),
    ("lost_records", "Records that are known to be missing.", "lost_records"),
)
_GAUGES = (
    ("scale", "Loss scale.", "scale"),
    ("zero_ratio", "Share of gradient elements that are zero.", "zero_fraction"),
    ("subnormal_ratio", "Share of gradient elements that are subnormal.", "subnormal_fraction"),
    ("headroom_bits", "Bits between the largest scaled gradient and 65504.", "headroom_bits"),
    ("overhead_ratio", "Share of the training time that monitoring takes.", "overhead"),
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
        says = "Running runs, including those without values here."
        yield _gauge("runs_running", says, listed.total)
        for kind, metrics in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, says, field in metrics:
                family = kind(f"ampmon_run_{name}", says, labels=_LABELS)
                for run in listed.rows:
                    missing = KINDS.index(getattr(run, f"{field}_kind", None))
                    if (value := join(getattr(run, field), missing)) is not None:
                        family.add_metric((run.run_id, run.project, run.name), value)
                yield family
