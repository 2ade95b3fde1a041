"""What a report holds of a run, as a server tells it. Asks, and draws nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ampmon_server.asking import Asking, Refused
from ampmon_server.figures import OF_A_RUN
from ampmon_server.report.agreed import together


SKIPS = 200
"""So many of the newest skips are in a report."""

ROWS_MAX = 1000
"""No more rows of the ledger are read for them: it has one of each rank."""

WIDTH, WIDTH_NARROW = 1000, 358
"""For so many pixels charts are drawn: for a desk or paper, and for a phone."""


@dataclass(frozen=True, slots=True)
class Told:
    """Answers of the server: ``figures`` by name, ``narrow`` those for a phone.

    ``skips`` are the newest of the ledger, each with the ranks that made it.
    """

    run: dict[str, Any]
    diagnosis: dict[str, Any]
    figures: dict[str, dict[str, Any]]
    narrow: dict[str, dict[str, Any]]
    skips: list[dict[str, Any]]


def tell(server: Asking, run_id: str, each: Callable[[str], object] = lambda _: None) -> Told:
    """Everything of a run; ``each`` is called before each of the things that take time. Blocks. Raises Unanswered."""
    ask = _Run(server, f"/runs/{run_id}")
    each("the run")
    run = ask.get("")
    each("findings")
    diagnosis, skips = ask.get("/diagnosis"), together(ask.skips(run["ranks"]))[:SKIPS]
    figures, narrow = {}, {}
    for name in OF_A_RUN:
        each(f"chart {name}")
        chosen = ask.recommended() if name == "simulated" else {}
        figures[name] = ask.figure(name, WIDTH, chosen)
        narrow[name] = ask.figure(name, WIDTH_NARROW, chosen)
    return Told(run, diagnosis, figures, narrow, skips)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run on a server."""

    server: Asking
    path: str

    def get(self, what: str, **fields: str) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.json.decode(self.server.get(f"{self.path}{what}", fields))
        return answer

    def figure(self, name: str, width: int, chosen: dict[str, str]) -> dict[str, Any]:
        return self.get(f"/figures/{name}", width=str(width), **chosen)

    def skips(self, ranks: int) -> list[dict[str, Any]]:
        """The newest rows of the ledger, and none of a step of which some ranks would be left out."""
        limit = str(min(SKIPS * ranks + 1, ROWS_MAX))
        page = self.get("/skips", limit=limit)
        rows: list[dict[str, Any]] = page["skips"]
        while page["next"] is not None and rows[0]["step"] == rows[-1]["step"]:
            page = self.get("/skips", limit=limit, cursor=page["next"])
            rows += page["skips"]
        if page["next"] is None:
            return rows
        return [row for row in rows if row["step"] != rows[-1]["step"]]

    def recommended(self) -> dict[str, str]:
        """The setting that is recommended, as the simulator's chart is asked for it; none without an update."""
        try:
            setting = self.get("/simulate")["recommended"]["policy"]
        except Refused:
            return {}
        setting["policy"] = setting.pop("name")
        return {f"sim_{name}": str(value) for name, value in setting.items() if value is not None}
