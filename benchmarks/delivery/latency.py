"""The time from the return of `scaler.update()` until its row is readable in the database, on one machine.

One process trains a small network at a fixed pace. Its sender and the server are separate processes. Another database
connection polls for commits every half millisecond, and reads the newest step after each. The updates of the first
second, in which the sender starts, are left out. While no page is open, the sender gathers updates for half a second,
and no bar applies. `server_cpu` is the server's processor time as a share of one core.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from benchmarks import processor
from benchmarks.delivery import FULL, Effort
from benchmarks.delivery.training import training
from benchmarks.paired import shown
from benchmarks.server import serving


BAR_P95_MS = 150.0
POLL_S = 5e-4
WITHIN_S = 30.0
# The table's keys are in this order, so the query finds the newest at once.
_NEWEST = (
    "SELECT last_step FROM update_pages ORDER BY run_id DESC, stream DESC, bucket DESC LIMIT 1"
)


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each pace, with a page open and without. Takes two minutes. Fills ``directory``."""
    rows = []
    turns = list(product((True, False), effort.paces))
    for number, (watched, (per_second, updates)) in enumerate(shown(turns, "latency")):
        folder = directory / str(number)
        milliseconds, server_cpu = _latencies(folder, updates, per_second, watched=watched)
        milliseconds = milliseconds[per_second:]
        p50, p95, p99 = (float(cut) for cut in np.percentile(milliseconds, (50, 95, 99)))
        rows.append(
            {
                "page": "open" if watched else "none",
                "updates_per_s": per_second,
                "updates": len(milliseconds),
                "p50_ms": round(p50, 1),
                "p95_ms": round(p95, 1),
                "p99_ms": round(p99, 1),
                "worst_ms": round(max(milliseconds), 1),
                "bar_p95_ms": BAR_P95_MS if watched else None,
                "p95_to_bar": round(p95 / BAR_P95_MS, 2) if watched else None,
                "holds": ("yes" if p95 <= BAR_P95_MS else "no") if watched else None,
                "server_cpu": server_cpu and round(server_cpu, 3),
                "each_ms": [round(each, 1) for each in milliseconds],
            }
        )
    return rows


def _latencies(
    directory: Path, updates: int, per_second: int, *, watched: bool
) -> tuple[list[float], float | None]:
    """Milliseconds from the return of each update until it was stored, and the server's share of a core.

    Raises TimeoutError if an update is not stored.
    """
    with (
        serving(directory) as (url, token, server),
        _page(url, token) if watched else nullcontext(),
        training("model", updates, per_second, monitored=(directory, url)) as process,
        closing(_database(directory)) as database,
    ):
        limit_s = updates / per_second + WITHIN_S
        began, before = time.perf_counter(), processor.seconds(server)
        seen = first_seen(database, updates, limit_s)
        took, after = time.perf_counter() - began, processor.seconds(server)
        returned = json.loads(process.read())
    milliseconds = [(stored - done) / 1e6 for done, stored in zip(returned, seen, strict=True)]
    return milliseconds, None if before is None or after is None else (after - before) / took


@contextmanager
def _page(url: str, token: str) -> Iterator[None]:
    """Listen as an open page does."""
    request = Request(f"{url}/api/v1/live", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request):
        yield


def _database(directory: Path) -> sqlite3.Connection:
    path = directory / "server" / "ampmon.db"
    return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)


def first_seen(
    database: sqlite3.Connection,
    updates: int,
    limit_s: float,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> list[int]:
    """When each update was first in the database, by ``clock`` (ns). Raises TimeoutError after ``limit_s`` seconds."""
    seen: list[int] = []
    version = None
    until = clock() + int(limit_s * 1e9)
    while len(seen) < updates:
        if clock() > until:
            raise TimeoutError(f"{len(seen)} of {updates} updates were stored in {limit_s:.0f} s")
        (now,) = database.execute("PRAGMA data_version").fetchone()
        if now == version:
            time.sleep(POLL_S)
            continue
        version = now
        newest = database.execute(_NEWEST).fetchone()
        if newest is not None:
            seen += [clock()] * (newest[0] + 1 - len(seen))
    return seen
