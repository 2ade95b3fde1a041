"""Optional Prometheus metrics: the newest values of a limited number of running runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ampmon_server.store import Store, Summary, Wanted
from ampmon_server.store.engine.numbers import KINDS, join


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
