"""Memory of the page while it follows a run at a fixed pace for half an hour: its JavaScript heap, nodes and listeners.

Each is read thirty times, after a garbage collection. The first minutes fill the charts up to their maximum number of
points, so the bar compares the last sixth of the readings with the second, by their medians.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import CDPSession

from benchmarks.delivery.training import training
from benchmarks.page import FULL, Effort
from benchmarks.page.browsing import reading, until
from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store.timing import Client


BAR_RATIO = 1.05
READINGS = 30


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for heap, nodes and listeners each. Takes ``effort.minutes``. Fills ``directory``."""
    seconds = 60 * effort.minutes
    updates = round(seconds * effort.per_second)
    with (
        serving(directory) as (url, token, _),
        reading(url, token) as page,
        training("model", updates, effort.per_second, monitored=(directory, url)) as process,
    ):
        runs, client = f"{url}/api/v1/runs", Client(token)
        page.goto(url)
        (run,) = until(page, "the run", lambda: json.loads(client.get(runs))["runs"])
        page.goto(f"{url}/#/runs/{run['run_id']}")
        developer = page.context.new_cdp_session(page)
        read = []
        for _ in shown(range(READINGS), "readings"):
            page.wait_for_timeout(1000 * seconds / READINGS)
            read.append(_held(developer))
        process.read()
    return [_row(name, effort, [each[name] for each in read]) for name in read[0]]


def _held(developer: CDPSession) -> dict[str, float]:
    """What the page holds after a garbage collection."""
    for _ in range(2):  # the second collects objects that the first releases
        developer.send("HeapProfiler.collectGarbage")
    counted = developer.send("Memory.getDOMCounters")
    return {
        "heap_MB": developer.send("Runtime.getHeapUsage")["usedSize"] / 1e6,
        "nodes": counted["nodes"],
        "listeners": counted["jsEventListeners"],
    }


def _row(name: str, effort: Effort, values: list[float]) -> dict[str, Any]:
    sixth = len(values) // 6
    early, late = median(values[sixth : 2 * sixth]), median(values[-sixth:])
    return {
        "what": name,
        "minutes": effort.minutes,
        "early": round(early, 1),
        "late": round(late, 1),
        "most": round(max(values), 1),
        "late_to_early": round(late / early, 3),
        "bar": BAR_RATIO,
        "holds": "yes" if late <= BAR_RATIO * early else "no",
        "each": [round(value, 1) for value in values],
    }
