"""Checks a year: each update that was sent is stored or was thinned, and totals are exact."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampmon_server.model.aggregates.updates import ROWS
from ampmon_server.store.pages.pages import unpack
from benchmarks.store.timing import Client
from campaigns.year.population import Planned


_PAGE = 1000


@dataclass(slots=True)
class Account:
    """Updates that were sent, are held, and were thinned. ``problems`` describes what does not add up.

    ``judged`` is the number of runs that the server has diagnosed.
    """

    runs: int = 0
    judged: int = 0
    sent: int = 0
    held: int = 0
    thinned: int = 0
    problems: list[str] = field(default_factory=list)


def account(
    summaries: Iterable[Mapping[str, Any]],
    database: Path,
    runs: Iterable[Planned],
    skipped: Mapping[int, int],
) -> Account:
    """Compare the summaries of runs and the rows of an SQLite file with what was sent, run by run.

    ``skipped`` has the number of skipped steps by the run's number.
    """
    listed = {each["run_id"]: each for each in summaries}
    rows, cuts = _rows(database)
    found = Account()
    for run in runs:
        found.runs += 1
        found.sent += run.sent
        summary = listed.pop(str(run.run_id), None)
        if summary is None:
            found.problems.append(f"{run.name} is not in the list")
            continue
        found.judged += summary["verdict"] is not None
        found.problems += _differing(run, summary, skipped[run.number])
        held, thinned = rows.get(run.run_id.bytes, 0), _thinned(run, cuts.get(run.run_id.bytes, 0))
        found.held += held
        found.thinned += thinned
        if held + thinned != run.sent:
            found.problems.append(f"{run.name}: {run.sent} sent, {held} held, {thinned} thinned")
    found.problems += [f"{run_id} was never sent" for run_id in listed]
    return found


def _differing(run: Planned, summary: Mapping[str, Any], skipped: int) -> Iterator[str]:
    """Where the list differs from what the run sent."""
    status = {
        "finished": "finished",
        "resumed": "finished",
        "crashed": "crashed",
        "killed": "silent",
    }
    expected = {
        "updates": run.updates,
        "skipped": skipped,
        "last_step": run.updates - 1,
        "ranks": run.ranks,
        "attempts": len(run.attempts),
        "lost_records": 0,
        "project": run.project,
        "status": status[run.fate],
    }
    for name, value in expected.items():
        if summary[name] != value:
            yield f"{run.name}: {name} is {summary[name]}, not {value}"


def _thinned(run: Planned, cut: int) -> int:
    """The number of a run's updates before the step from which its rows are held."""
    return run.ranks * sum(max(min(stop, cut) - first, 0) for first, stop in run.attempts)


def _rows(database: Path) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """By run, the number of held updates, and the step from which on they are held."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows: Counter[bytes] = Counter()
        for run_id, data in connection.execute("SELECT run_id, data FROM update_pages"):
            rows[run_id] += len(unpack(data, ROWS))
        cuts = connection.execute("SELECT run_id, max(rows_from) FROM streams GROUP BY run_id")
        return rows, dict(cuts.fetchall())


def listed(url: str, client: Client) -> Iterator[dict[str, Any]]:
    """Every run of the list, page by page."""
    cursor = ""
    while cursor is not None:
        following = f"&cursor={cursor}" if cursor else ""
        page = json.loads(client.get(f"{url}/api/v1/runs?limit={_PAGE}{following}"))
        yield from page["runs"]
        cursor = page["next"]
