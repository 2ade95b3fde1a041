"""Prometheus metrics of this server process, with few label values whatever clients request, and of running runs.

Those of the process name no project, run or owner, because every token with the scope `read` can see them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ampmon_server.alerting.delivery import TROUBLES
from ampmon_server.background.writer import QueueFull
from ampmon_server.http.service import Service
from ampmon_server.store import (
    BadBatch,
    Busy,
    NotFound,
    Store,
    StoreError,
    Summary,
    UnknownHeader,
    Wanted,
)
from ampmon_server.store.engine.numbers import KINDS, join


Reason = Literal[
    "busy",
    "damaged",
    "encoding",
    "failed",
    "gone",
    "header",
    "invalid",
    "line",
    "not_found",
    "slow",
    "too_large",
    "type",
    "version",
]
"""Why a batch was rejected; docs/operations.md explains each."""

_REASONS: dict[type[Exception], Reason] = {
    BadBatch: "invalid",
    UnknownHeader: "header",
    NotFound: "not_found",
    Busy: "busy",
    QueueFull: "line",
}
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Seconds. A request may wait in the write queue for up to 20 s."""


# They would add a series to each series, with the time it began, and nobody plots those.
disable_created_metrics()  # type: ignore[no-untyped-call]


def reason_of(error: Exception) -> Reason:
    """The reason that a batch rejected with ``error`` counts under."""
    return next((why for kind, why in _REASONS.items() if isinstance(error, kind)), "failed")


class Metrics:
    """The metrics of one app, in their own registry. ``service`` returns the app's service once it is open."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self.registry = into = CollectorRegistry()
        self._requests = Counter(
            "ampmon_http_requests",
            "Answered requests by method, route and status class.",
            ["method", "route", "status"],
            registry=into,
        )
        self._seconds = Histogram(
            "ampmon_http_request_duration_seconds",
            "Time from the request to the start of the response.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=into,
        )
        self._batches = Counter("ampmon_ingest_batches", "Accepted batches.", registry=into)
        self._records = Counter(
            "ampmon_ingest_records",
            "Records of accepted batches, including repeated ones.",
            registry=into,
        )
        self._bytes = Counter(
            "ampmon_ingest_bytes", "Bytes of accepted batches, as sent.", registry=into
        )
        self._refused = Counter(
            "ampmon_ingest_refused",
            "Rejected batches by reason.",
            ["reason"],
            registry=into,
        )
        # Start at 0: to Prometheus, a series that begins at 1 has not increased.
        for reason in get_args(Reason):
            self._refused.labels(reason)
        ProcessCollector(registry=into)
        into.register(_Standing(service))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. Take ``method`` and ``route`` from `logs.method_of` and `logs.route_of`."""
        self._requests.labels(method, route, f"{status // 100}xx").inc()
        self._seconds.labels(method, route).observe(seconds)

    def took(self, records: int, size: int) -> None:
        """Count a stored batch of ``size`` bytes."""
        self._batches.inc()
        self._records.inc(records)
        self._bytes.inc(size)

    def refused(self, reason: Reason) -> None:
        """Count a rejected batch."""
        self._refused.labels(reason).inc()


class _Standing(Collector):
    """Metrics that are computed when requested, and cost nothing before."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service()
        for name, documentation, value in (
            ("event_streams", "Open event streams.", service.bus.listeners),
            ("writers_waiting", "Writes that are running or waiting.", service.writer.waiting),
            (
                "writers_waiting_bytes",
                "Bytes of request bodies that are arriving or waiting to be written.",
                service.writer.waiting_bytes,
            ),
        ):
            yield GaugeMetricFamily(f"ampmon_{name}", documentation, value)
        limited = CounterMetricFamily(
            "ampmon_limited", "Requests rejected with 429, by limit.", labels=["limit"]
        )
        for limit, refused in service.limits.refused.items():
            limited.add_metric([limit], refused)
        yield limited
        if service.certificate is not None:
            yield GaugeMetricFamily(
                "ampmon_certificate_end_seconds",
                "Expiry of the TLS certificate, in seconds since the epoch.",
                service.certificate.ends_s,
            )
        yield from self._judging(service)
        yield from self._alerting(service)
        yield from self._forwarding(service)
        yield from self._database(service)

    def _judging(self, service: Service) -> Iterator[Metric]:
        judge = service.judge
        for name, documentation, value in (
            ("judgements", "Checks of runs for findings.", judge.looks),
            ("judgement_seconds", "Processor time of these checks.", judge.seconds),
            (
                "judgement_failures",
                "Checks and rules that failed; the log says which.",
                sum(list(judge.failed.values())),
            ),
        ):
            yield CounterMetricFamily(f"ampmon_{name}", documentation, value)
        yield GaugeMetricFamily(
            "ampmon_judgement_late_seconds",
            "How long the most overdue run has waited for its check.",
            judge.late_s,
        )

    def _alerting(self, service: Service) -> Iterator[Metric]:
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
            yield GaugeMetricFamily(
                "ampmon_alerts_firing",
                "Firing alerts of all runs that nobody has acknowledged.",
                service.store.firing(),
            )
            late = sum(each.late for each in service.store.target_states().values())
            yield GaugeMetricFamily(
                "ampmon_alert_messages_waiting",
                "Alert messages that are overdue or failed to send.",
                late,
            )

    def _forwarding(self, service: Service) -> Iterator[Metric]:
        for kind, name, documentation, value in (
            (CounterMetricFamily, "points", "Forwarded points.", attrgetter("points")),
            (CounterMetricFamily, "failures", "Failed attempts.", attrgetter("failed")),
            (
                GaugeMetricFamily,
                "runs_waiting",
                "Runs that are not completely forwarded, up to 64.",
                attrgetter("waiting"),
            ),
            (
                GaugeMetricFamily,
                "up",
                "1 if the destination is available, else 0.",
                attrgetter("up"),
            ),
        ):
            family = kind(f"ampmon_forward_{name}", documentation, labels=["destination"])
            for each in service.forwarders:
                family.add_metric([each.label], value(each))
            if service.forwarders:
                yield family

    def _database(self, service: Service) -> Iterator[Metric]:
        begun = time.perf_counter()
        ready = GaugeMetricFamily(
            "ampmon_ready", "1 if the part is ready, else 0.", labels=["part"]
        )
        for part, why in service.readiness().items():
            ready.add_metric([part], why is None)
        yield ready
        yield GaugeMetricFamily(
            "ampmon_ready_check_seconds",
            "Time that the readiness check took, mostly in the database.",
            time.perf_counter() - begun,
        )
        size = service.store.file_bytes()
        if size is not None:
            yield GaugeMetricFamily("ampmon_database_bytes", "Size of the SQLite file.", size)


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
