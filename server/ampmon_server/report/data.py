"""The contents of a report, requested from a server. Draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ampmon_server.charts import RUN_FIGURES
from ampmon_server.client import ApiClient
from ampmon_server.model.readouts import first_streams


SKIPS = 200
"""A report has at most this many skips, the newest."""

WIDTH, WIDTH_NARROW = 1000, 358
"""The widths in pixels at which charts are drawn: for a desktop or paper, and for a phone."""

SCALERS_MAX = 4
"""At most this many scalers have charts, because each makes the file larger."""

OF_ALL_SCALERS = frozenset({"scalars"})
"""Charts that are drawn once, however many scalers a run has."""


@dataclass(frozen=True, slots=True)
class ReportChart:
    """A chart, also drawn for a phone (``narrow``). Its ``name`` is unique in the file.

    ``scaler`` says whose it is, if the run has several.
    """

    name: str
    scaler: str
    figure: dict[str, Any]
    narrow: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Answers of the server. ``skips`` are the newest of the ledger, each with the ranks that skipped.

    ``scalers`` are the names of all scalers. Only the first `SCALERS_MAX` have charts.
    """

    run: dict[str, Any]
    diagnosis: dict[str, Any]
    scalers: list[str]
    charts: list[ReportChart]
    skips: list[dict[str, Any]]


def gather(
    server: ApiClient, run_id: str, each: Callable[[str], object] = lambda _: None
) -> ReportData:
    """Request everything about a run. Blocks. Raises ClientError.

    ``each`` is called with a description before each slow part.
    """
    ask = _Run(server, f"/runs/{run_id}")
    each("the run")
    run = ask.get("")
    each("findings")
    diagnosis = ask.get("/diagnosis")
    skips = ask.get("/skips", shared="true", limit=str(SKIPS))["skips"][:SKIPS]
    streams = first_streams(run)
    charts: list[ReportChart] = []
    for name in RUN_FIGURES:
        each(f"chart {name}")
        charts += ask.charts(name, streams)
    return ReportData(run, diagnosis, list(streams), charts, skips)


@dataclass(frozen=True, slots=True)
class _Run:
    server: ApiClient
    path: str

    def get(self, what: str, **fields: str) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(self.server.get(f"{self.path}{what}", fields))
        return answer

    def charts(self, name: str, streams: dict[str, str]) -> Iterator[ReportChart]:
        """Yield a chart of each of the first scalers.

        If there is one scaler, or the chart is of all scalers, yield one chart of the stream that the server chooses.
        """
        if len(streams) < 2 or name in OF_ALL_SCALERS:
            yield self.chart(name, name, "", {})
            return
        for place, (scaler, stream) in enumerate(list(streams.items())[:SCALERS_MAX]):
            yield self.chart(f"{name}-{place}", name, scaler, {"stream": stream})

    def chart(self, key: str, name: str, scaler: str, of: dict[str, str]) -> ReportChart:
        wide, narrow = (
            self.get(f"/figures/{name}", width=str(width), **of) for width in (WIDTH, WIDTH_NARROW)
        )
        return ReportChart(key, scaler, wide, narrow)
