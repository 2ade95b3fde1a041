"""The host's time for an update under `ampmon run`, as a ratio to that with `ampmon.GradScaler` in the script.

Scalers with default settings take turns, update by update, each with its own optimizer and gradients. A second
`ampmon.GradScaler` takes turns with them: its ratio is the noise. Each round creates all of them again, because their
place in memory matters more than the difference measured here. The interval is that of the rounds' medians. If it
contains 1, there is no measurable difference. Records go to a spool and are not sent.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median
from typing import Any

import torch

import ampmon
from ampmon.training import built
from benchmarks.host_cost import TENSORS, alternate, iteration
from benchmarks.paired import ratio, shown


ROUNDS, UPDATES = 40, 500


def unchanged(*args: Any, **kwargs: Any) -> torch.amp.GradScaler:
    """Create torch's scaler as under `ampmon run`, which would also watch all other scalers of the process."""
    scaler = torch.amp.GradScaler(*args, **kwargs)
    built.startup()._wait(scaler)
    return scaler


KINDS = {
    "given": ampmon.GradScaler,
    "noise": ampmon.GradScaler,
    "ampmon run": unchanged,
    "balance": unchanged,
}
"""Two of each class: Python is faster with a class that it sees more often, and a training has only one."""


def measure(directory: Path, rounds: int = ROUNDS, updates: int = UPDATES) -> list[dict[str, Any]]:
    """Two rows for each number of tensors: `ampmon run`, and the noise. Takes a minute or two."""
    rows = []
    for tensors in TENSORS:
        times: dict[str, list[float]] = {name: [] for name in KINDS}
        for number in shown(range(rounds), f"{tensors} tensors"):
            ampmon.init(f"benchmark {number}", dir=directory, mode="offline")  # streams are limited
            for name, each in one_round(tensors, updates).items():
                times[name].append(each)
        ampmon.finish()
        for name in ("ampmon run", "noise"):
            found = ratio(times[name], times["given"])
            rows.append({"tensors": tensors, "what": name, **found.row()})
    return rows


def one_round(tensors: int, updates: int) -> dict[str, float]:
    """The median host microseconds of an update, by kind of scaler."""
    # In random order, because the first one's memory differs from the others'.
    made = random.sample(list(KINDS.items()), len(KINDS))
    works = {name: iteration(make, tensors) for name, make in made}
    return {name: median(times) for name, times in alternate(works, updates).items()}
