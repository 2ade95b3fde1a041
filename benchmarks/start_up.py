"""The run time of a Python that never imports torch, with and without the PYTHONPATH of `ampmon run`.

Both take turns, and the added time is the median of the differences within a round. `ampmon run` itself costs once per
training: the time until the program that it becomes has ended, minus that program's own time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ampmon_server.cli.launch import watching
from benchmarks.paired import take_turns


BAR_MS = 20.0
PROGRAMS = {
    "nothing": "pass",
    "much of the standard library": "import asyncio, email.message, http.client, json, logging.config, unittest",
}
AMPMON_RUN = [sys.executable, "-m", "ampmon_server.cli", "run", "--no-serve"]


def measure(directory: Path, rounds: int = 200) -> list[dict[str, Any]]:
    """A row for each program, and one for `ampmon run` itself. Takes a minute or two."""
    stock = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    stock["AMPMON_DIR"] = str(directory)
    rows = []
    for what, program in PROGRAMS.items():
        command = [sys.executable, "-c", program]
        works = {
            "with": partial(_run, command, watching(stock)),
            "without": partial(_run, command, stock),
        }
        rows.append(_row(what, take_turns(works, rounds, what), BAR_MS))
    works = {
        "with": partial(_run, [*AMPMON_RUN, "true"], stock),
        "without": partial(_run, ["true"], stock),
    }
    rows.append(
        _row("the command `ampmon run` itself, once", take_turns(works, rounds, "run"), None)
    )
    return rows


def _run(command: list[str], environment: Mapping[str, str]) -> None:
    subprocess.run(command, env=environment, check=True, stdin=subprocess.DEVNULL)


def _row(what: str, times: Mapping[str, list[float]], bar_ms: float | None) -> dict[str, Any]:
    added = [
        1000 * (one - other) for one, other in zip(times["with"], times["without"], strict=True)
    ]
    quarters = quantiles(added, n=4)
    return {
        "python": what,
        "without_ms": round(1000 * median(times["without"]), 2),
        "added_ms": round(median(added), 2),
        "quarter_below": round(quarters[0], 2),
        "quarter_above": round(quarters[2], 2),
        "bar_ms": bar_ms,
        "holds": None if bar_ms is None else "yes" if median(added) <= bar_ms else "no",
    }
