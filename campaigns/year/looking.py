"""Measures a year at some point: the size of its database, the server's memory, and how long pages take."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ampmon_server.charts import RUN_FIGURES
from benchmarks.delivery.memory import held_now
from benchmarks.store.timing import Client, in_turns


PAGE, WIDTH = 100, 1000
_RUNS = 20
"""The number of runs of each kind whose figures are requested."""


def look(url: str, client: Client, server: int, database: Path, limit_s: float) -> dict[str, Any]:
    """Return sizes in MB, and the median and 95 % point of times in ms. Blocks somewhat longer than ``limit_s``."""
    pages = f"{url}/api/v1/runs?limit={PAGE}"
    total = json.loads(client.get(pages))["total"]
    longest = _ids(client, f"{url}/api/v1/runs?limit={_RUNS}&sort=updates")
    newest = _ids(client, f"{url}/api/v1/runs?limit={_RUNS}")
    some = [
        run_id
        for _ in range(_RUNS)
        for run_id in _ids(client, f"{url}/api/v1/runs?limit=1&offset={random.randrange(total)}")
    ]
    asks: dict[str, Callable[[], object]] = {
        "list": lambda: client.get(pages),
        "list, further on": lambda: client.get(f"{pages}&offset={random.randrange(total)}"),
        "list, sorted": lambda: client.get(f"{pages}&sort=updates"),
        "list, searched": lambda: client.get(f"{pages}&search=gpt+warmup"),
        "list, of a project": lambda: client.get(f"{pages}&project=vision"),
        "figures, newest runs": lambda: _figure(client, url, newest),
        "figures, longest runs": lambda: _figure(client, url, longest),
        "figures, any run": lambda: _figure(client, url, some),
    }
    times = in_turns(asks, "pages", limit_s=limit_s, most=1000)
    held = held_now(server)
    return {
        "runs": total,
        "database_mb": round(size_mb(database), 1),
        "server_rss_mb": round(held.rss),
        "server_pss_mb": round(held.pss),
        "times": {
            name: {
                "p50_ms": round(each.p50, 1),
                "p95_ms": round(each.p95, 1),
                "asked": each.requests,
            }
            for name, each in times.items()
        },
    }


def size_mb(database: Path) -> float:
    """The size of an SQLite file with its write-ahead log."""
    files = (database, database.with_name(f"{database.name}-wal"))
    return sum(each.stat().st_size for each in files if each.exists()) / 1e6


def _ids(client: Client, url: str) -> list[str]:
    return [str(run["run_id"]) for run in json.loads(client.get(url))["runs"]]


def _figure(client: Client, url: str, runs: Sequence[str]) -> bytes:
    """A random chart of a random run."""
    figure = random.choice(RUN_FIGURES)
    return client.get(f"{url}/api/v1/runs/{random.choice(runs)}/figures/{figure}?width={WIDTH}")
