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

    def ask(what: str, **fields: str) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(server.get(f"/runs/{run_id}{what}", fields))
        return answer

    each("the run")
    run = ask("")
    each("findings")
    diagnosis = ask("/diagnosis")
    skips = ask("/skips", shared="true", limit=str(SKIPS))["skips"][:SKIPS]
    streams = first_streams(run)
    charts: list[ReportChart] = []
    for name in RUN_FIGURES:
        each(f"chart {name}")
        for key, scaler, of in _scalers(name, streams):
            wide, narrow = (
                ask(f"/figures/{name}", width=str(width), **of) for width in (WIDTH, WIDTH_NARROW)
            )
            charts.append(ReportChart(key, scaler, wide, narrow))
    return ReportData(run, diagnosis, list(streams), charts, skips)


def _scalers(name: str, streams: dict[str, str]) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the key, the scaler and the query of each chart called ``name``: one for each of the first scalers.

    If there is one scaler, or the chart shows all scalers, the server chooses the stream of its only chart.
    """
    if len(streams) < 2 or name in OF_ALL_SCALERS:
        yield name, "", {}
        return
    for place, (scaler, stream) in enumerate(list(streams.items())[:SCALERS_MAX]):
        yield f"{name}-{place}", scaler, {"stream": stream}
