"""The list of ten thousand runs, in pages of a hundred, requested over HTTP on loopback without an ETag.

Pages are the first, a random later one by cursor, a later one by offset, and the first of a project, of a search and in
the order of a column. The runs are copies of an ingested one, with their own ids, times, names and totals.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import insert, select

from ampmon_server.settings import Settings
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.opening import url_of
from ampmon_server.store.schema.tables import runs
from benchmarks.store import FULL, Effort
from benchmarks.store.databases import beside_postgresql, served
from benchmarks.store.filling import START, fill
from benchmarks.store.real import real
from benchmarks.store.timing import Client, in_turns
from benchmarks.store.track import track


BAR_MS = 30.0
PROJECTS = 20
PAGE = 100


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each engine and page. Takes half a minute. Fills ``directory``."""
    rows = _on_engine("SQLite", Settings(data_directory=directory / "sqlite"), effort)
    return beside_postgresql(
        rows, directory, lambda settings: _on_engine("PostgreSQL", settings, effort)
    )


def _on_engine(name: str, settings: Settings, effort: Effort) -> list[dict[str, Any]]:
    _fill(settings, effort)
    with served(settings) as (url, token, _):
        client = Client(token)
        pages = f"{url}/api/v1/runs?limit={PAGE}"
        cursors = _cursors(client, pages)
        asks: dict[str, Callable[[], object]] = {
            "first": lambda: client.get(pages),
            "further on": lambda: client.get(f"{pages}&cursor={random.choice(cursors)}"),
            "at an offset": lambda: client.get(f"{pages}&offset={effort.runs * 9 // 10}"),
            "sorted by updates": lambda: client.get(f"{pages}&sort=updates"),
            "searched": lambda: client.get(f"{pages}&search=run+77"),
            "of a project": lambda: client.get(f"{pages}&project=project-{PROJECTS // 2}"),
        }
        times = in_turns(asks, "runs", limit_s=effort.list_s, most=200)
    return [
        {
            "engine": name,
            "runs": effort.runs,
            "page": page,
            "p50_ms": round(found.p50, 1),
            "p95_ms": round(found.p95, 1),
            "bar_ms": BAR_MS,
            "holds": "yes" if found.p95 <= BAR_MS else "no",
            "note": None,
        }
        for page, found in times.items()
    ]


def _fill(settings: Settings, effort: Effort) -> None:
    (made,) = fill(settings, [(track(200), real(effort.real_samples))])
    database = engine.open_engine(url_of(settings))
    with engine.writing(database) as connection:
        row = connection.execute(select(runs).where(runs.c.run_id == made.bytes)).one()
        copies = [
            {
                **row._mapping,
                "run_id": uuid4().bytes,
                "started": START + 60_000_000 * number,
                "project": f"project-{number % PROJECTS}",
                "name": f"run {number}",
                "updates": 1000 * number,
                "version": number,
            }
            for number in range(1, effort.runs)
        ]
        connection.execute(insert(runs), copies)
    database.dispose()


def _cursors(client: Client, pages: str) -> list[str]:
    """The cursor of each page after the first."""
    cursors: list[str] = []
    page = json.loads(client.get(pages))
    while page["next"]:
        cursors.append(page["next"])
        page = json.loads(client.get(f"{pages}&cursor={page['next']}"))
    return cursors
