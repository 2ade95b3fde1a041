"""Whether a year that was put in is there: each update is stored or was thinned, and totals are exact."""

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
    """Updates that were sent, that are held, and that were thinned; ``problems`` say in words what does not add up.

    ``judged`` are the runs that the server has come to judge.
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
    """Hold the summaries of runs and the rows of an SQLite file to all that was sent, run by run.

    ``skipped`` are the steps that were, by the numbers of the runs.
    """
    listed = {each["run_id"]: each for each in summaries}
    rows, cuts = _rows(database)
    found = Account()
    for run in runs:
        found.runs += 1
        found.sent += run.told
        summary = listed.pop(str(run.run_id), None)
        if summary is None:
            found.problems.append(f"{run.name} is not in the list")
            continue
        found.judged += summary["verdict"] is not None
        found.problems += _differing(run, summary, skipped[run.number])
        held, thinned = rows.get(run.run_id.bytes, 0), _thinned(run, cuts.get(run.run_id.bytes, 0))
        found.held += held
        found.thinned += thinned
        if held + thinned != run.told:
            found.problems.append(f"{run.name}: {run.told} sent, {held} held, {thinned} thinned")
    found.problems += [f"{run_id} was never sent" for run_id in listed]
    return found


def _differing(run: Planned, summary: Mapping[str, Any], skipped: int) -> Iterator[str]:
    """What the list says otherwise of a run."""
    status = {
        "finished": "finished",
        "resumed": "finished",
        "crashed": "crashed",
        "killed": "silent",
    }
    told = {
        "updates": run.updates,
        "skipped": skipped,
        "last_step": run.updates - 1,
        "ranks": run.ranks,
        "attempts": len(run.attempts),
        "lost_records": 0,
        "project": run.project,
        "status": status[run.fate],
    }
    for name, value in told.items():
        if summary[name] != value:
            yield f"{run.name}: {name} is {summary[name]}, not {value}"


def _thinned(run: Planned, cut: int) -> int:
    """How many of a run's updates were before the step from which its rows are held."""
    return run.ranks * sum(max(min(stop, cut) - first, 0) for first, stop in run.attempts)


def _rows(database: Path) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Of each run how many updates are held, and from which step on."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        rows: Counter[bytes] = Counter()
        for run_id, data in connection.execute("SELECT run_id, data FROM update_pages"):
            rows[run_id] += len(unpack(data, ROWS))
        cuts = connection.execute("SELECT run_id, max(rows_from) FROM streams GROUP BY run_id")
        return rows, dict(cuts.fetchall())


def listed(url: str, client: Client) -> Iterator[dict[str, Any]]:
    """Every run of the list, a page at a time."""
    cursor = ""
    while cursor is not None:
        following = f"&cursor={cursor}" if cursor else ""
        page = json.loads(client.get(f"{url}/api/v1/runs?limit={_PAGE}{following}"))
        yield from page["runs"]
        cursor = page["next"]
