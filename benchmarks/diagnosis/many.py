"""How late a server judges runs while two hundred trainings send to it at once.

A real server uses SQLite. The clients are threads of another process on the same machine, and each sends fifty updates
every five seconds. `late_s` is the longest time for which a run was due, read each second from `/metrics`. `judging` is
the judge's share of a core.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.diagnosis import FULL, Effort
from benchmarks.paired import shown
from benchmarks.server import serving
from benchmarks.store.timing import Client
from benchmarks.team.crowd import sending


EVERY_S, UPDATES = 5.0, 50
BAR_S = 30.0


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """One row. Takes ``effort.active_s`` seconds. Fills ``directory``."""
    late: list[float] = []
    with serving(directory) as (url, token, _):
        client = Client(token)
        with sending(url, token, effort.active, effort.active_s, EVERY_S, UPDATES) as crowd:
            for _ in shown(range(round(effort.active_s)), "sent"):
                time.sleep(1.0)
                late.append(_metric(client, url, "judgement_late_seconds"))
            looks, took_s = (
                _metric(client, url, f"judgement{each}_total") for each in ("s", "_seconds")
            )
    counted = json.loads(crowd.counted)
    return [
        {
            "runs": effort.active,
            "updates_per_s": round(counted["taken"] / effort.active_s),
            "looks": round(looks),
            "look_cpu_ms": round(1000 * took_s / max(looks, 1), 1),
            "judging": round(took_s / effort.active_s, 3),
            "late_s": round(max(late), 1),
            "bar": BAR_S,
            "holds": "yes" if looks and max(late) <= BAR_S and not counted["failed"] else "no",
        }
    ]


def _metric(client: Client, url: str, name: str) -> float:
    """The value of a metric without labels."""
    lines = client.get(f"{url}/metrics").decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"ampmon_{name} "))
    return float(value)
