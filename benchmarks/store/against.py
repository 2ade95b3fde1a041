"""Ingest now beside ingest at an older commit: servers of the two trees, in turns.

Each turn has its own server and data directory, and sends the same batches. A disturbance of the machine hits both, so
ratios within a round are steadier than rates. Processor time is that of all threads of the server, and hardly depends
on other load.
"""

from __future__ import annotations

import os
import random
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.paired import NO_RATIO, ratio, shown
from benchmarks.server import serving
from benchmarks.store import FULL, Effort, load
from benchmarks.store.rates import Crowd
from benchmarks.store.real import real


BEFORE = "b29152e"
"""The last commit before the store's new design."""

CROWDS = (
    Crowd(1, 1000),
    Crowd(10, 1000),
    Crowd(200, 100),
    Crowd(1, 45, sampled=True),
    Crowd(200, 2, sampled=True),
)
_ROOT = Path(__file__).parents[2]


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each crowd. Takes about ten minutes. Fills ``directory``."""
    tree = directory / "before"
    note = _checked_out(tree)
    if note is not None:
        return [_row(crowd, {}, note) for crowd in CROWDS]
    trees = {"before": tree, "now": _ROOT}
    return [
        _row(crowd, _turns(directory / str(number), crowd, trees, effort), None)
        for number, crowd in enumerate(shown(CROWDS, "crowds"))
    ]


def _checked_out(tree: Path) -> str | None:
    """Extract the older commit into ``tree``, or return why that is not possible."""
    archive = tree.with_suffix(".tar")
    archive.parent.mkdir(parents=True, exist_ok=True)
    command = ["git", "-C", str(_ROOT), "archive", "-o", str(archive), BEFORE, "ampmon", "server"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"not measured: {' '.join(done.stderr.split()) or 'git has failed'}"
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    return None


def _turns(
    place: Path, crowd: Crowd, trees: Mapping[str, Path], effort: Effort
) -> dict[str, list[load.Sent]]:
    samples = real(effort.real_samples)
    make = load.sampled if crowd.sampled else load.plain
    batches = max(
        effort.against_records // (10 if crowd.sampled else 1) // crowd.clients, crowd.size
    )
    turns: dict[str, list[load.Sent]] = {name: [] for name in trees}
    for number in range(effort.against_rounds + 1):
        works = [make(batches // crowd.size, crowd.size, samples) for _ in range(crowd.clients)]
        for name in random.sample(list(trees), len(trees)):
            taken = _turn(place / f"{name}-{number}", trees[name], works)
            if number:  # the first warms the machine
                turns[name].append(taken)
    return turns


def _turn(place: Path, tree: Path, works: list[load.Work]) -> load.Sent:
    # Python looks for ampmon in the working directory first, then in PYTHONPATH, then in the peers' environment.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tree), str(tree / "server")))}
    with serving(place, env=env, cwd=tree) as (url, token, pid):
        return load.send([url], token, works, 60.0, [pid])


def _row(crowd: Crowd, turns: Mapping[str, list[load.Sent]], note: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "what": crowd.what,
        "clients": crowd.clients,
        "batch": crowd.size,
    }
    if note is not None:
        figures = dict.fromkeys(("before_per_s", "now_per_s", "before_us", "now_us"))
        return {**row, **figures, **NO_RATIO, "us_ratio": None, "note": note}
    for name, each in turns.items():
        row[f"{name}_per_s"] = round(sorted(turn.rate for turn in each)[len(each) // 2])
    for name, each in turns.items():
        row[f"{name}_us"] = round(sorted(map(_us, each))[len(each) // 2], 1)
    rates = [[turn.rate for turn in turns[name]] for name in ("now", "before")]
    times = [list(map(_us, turns[name])) for name in ("now", "before")]
    return {
        **row,
        **ratio(*rates).row(),
        "us_ratio": round(ratio(*times).value, 3),
        "note": None,
    }


def _us(turn: load.Sent) -> float:
    assert turn.processor_us is not None, "measured on Linux only"
    return turn.processor_us
