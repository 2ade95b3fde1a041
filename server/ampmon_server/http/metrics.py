"""Prometheus metrics that count requests and batches, with few label values, and recent rejections as text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from ampmon_server.background.writer import QueueFull
from ampmon_server.store.engine.errors import BadBatch, Busy, NotFound, UnknownHeader, Unreadable


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
    Unreadable: "busy",
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
    """The counters of one service, in their own registry. They name no project, run or owner."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        says = "Answered requests by method, route and status class."
        self._requests = self._counter("http_requests", says, "method", "route", "status")
        self._seconds = Histogram(
            "ampmon_http_request_duration_seconds",
            "Time from the request to the start of the response.",
            ["method", "route"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._batches = self._counter("ingest_batches", "Accepted batches.")
        says = "Records of accepted batches, including repeated ones."
        self._records = self._counter("ingest_records", says)
        self._bytes = self._counter("ingest_bytes", "Bytes of accepted batches, as sent.")
        self._refused = self._counter("ingest_refused", "Rejected batches by reason.", "reason")
        # Start at 0: to Prometheus, a series that begins at 1 has not increased.
        for reason in get_args(Reason):
            self._refused.labels(reason)
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"ampmon_{name}", says, labels, registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. Take ``method`` and ``route`` from `access.method_of` and `access.route_of`."""
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


KEPT_S = 3600.0
WORDS_MAX = 8


class RejectedClients:
    """The newest distinct rejections of the last hour, for the page: such a client has no run there. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, float] = {}

    def note(self, words: str) -> None:
        """Record a rejection. Beyond `WORDS_MAX` the oldest is dropped."""
        with self._lock:
            self._refused.pop(words, None)
            self._refused[words] = self._clock()
            while len(self._refused) > WORDS_MAX:
                del self._refused[next(iter(self._refused))]

    def recent(self) -> list[str]:
        """The rejections of the last hour, newest last."""
        with self._lock:
            since = self._clock() - KEPT_S
            return [words for words, at in self._refused.items() if at >= since]
