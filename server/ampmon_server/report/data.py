"""What a report holds of a run, as a server has it. Asks, and draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from ampmon_server.charts import OF_A_RUN
from ampmon_server.client import Asking


SKIPS = 200
"""So many of the newest skips are in a report."""

WIDTH, WIDTH_NARROW = 1000, 358
"""For so many pixels charts are drawn: for a desk or paper, and for a phone."""

SCALERS_MAX = 4
"""Of so many scalers there are charts: each more makes the file larger by its own."""

OF_ALL_SCALERS = frozenset({"scalars"})
"""Charts that are there once, whatever scalers a run has."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart by a name that no other in the file has, and drawn for a phone; ``scaler`` says whose, among several."""

    name: str
    scaler: str
    figure: dict[str, Any]
    narrow: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Answers of the server. ``skips`` are the newest of the ledger, each with the ranks that made it.

    ``scalers`` are the names of all of them; charts are of the first.
    """

    run: dict[str, Any]
    diagnosis: dict[str, Any]
    scalers: list[str]
    charts: list[Chart]
    skips: list[dict[str, Any]]


def gather(
    server: Asking, run_id: str, each: Callable[[str], object] = lambda _: None
) -> ReportData:
    """Everything of a run; ``each`` is called before each of the things that take time. Blocks. Raises Unanswered."""
    ask = _Run(server, f"/runs/{run_id}")
    each("the run")
    run = ask.get("")
    each("findings")
    diagnosis = ask.get("/diagnosis")
    skips = ask.get("/skips", shared="true", limit=str(SKIPS))["skips"][:SKIPS]
    streams = _streams(run)
    charts: list[Chart] = []
    for name in OF_A_RUN:
        each(f"chart {name}")
        charts += ask.charts(name, streams)
    return ReportData(run, diagnosis, list(streams), charts, skips)


def _streams(run: dict[str, Any]) -> dict[str, str]:
    """Each scaler's first stream, by its name."""
    found: dict[str, str] = {}
    for each in run["streams"]:
        found.setdefault(each["scaler"], each["stream"])
    return found


@dataclass(frozen=True, slots=True)
class _Run:
    """One run on a server."""

    server: Asking
    path: str

    def get(self, what: str, **fields: str) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(self.server.get(f"{self.path}{what}", fields))
        return answer

    def charts(self, name: str, streams: dict[str, str]) -> Iterator[Chart]:
        """A chart of each of the first scalers, or the one of them all: the server's own choice."""
        if len(streams) < 2 or name in OF_ALL_SCALERS:
            yield self.chart(name, name, "", {})
            return
        for place, (scaler, stream) in enumerate(list(streams.items())[:SCALERS_MAX]):
            yield self.chart(f"{name}-{place}", name, scaler, {"stream": stream})

    def chart(self, key: str, name: str, scaler: str, of: dict[str, str]) -> Chart:
        wide, narrow = (
            self.get(f"/figures/{name}", width=str(width), **of) for width in (WIDTH, WIDTH_NARROW)
        )
        return Chart(key, scaler, wide, narrow)
