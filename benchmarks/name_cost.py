"""The training thread's cost of naming parameters, once per process, if the script passes no model.

Creating the scaler searches all objects for modules, except under `ampmon run`. `meet` names the optimizer's
parameters in its first step. Both are timed by the thread's own processor time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from ampmon.training import built
from ampmon.training.parameters import ParameterRegistry
from benchmarks.paired import shown


TENSORS = (148, 10_000, 100_000)
"""As many as GPT-2 small has, and more than nearly any model. Each has its own module."""


def measure(directory: Path, rounds: int = 10) -> list[dict[str, Any]]:
    """A row for each number of tensors. Takes a minute."""
    rows = []
    built.see_modules()
    for tensors in TENSORS:
        model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(tensors)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        looked, met = [], []
        for _ in shown(range(rounds), f"{tensors} tensors"):
            looked.append(milliseconds(built.living_modules))
            met.append(milliseconds(partial(ParameterRegistry(None).meet, optimizer)))
        objects = len(gc.get_objects())
        rows.append(
            {
                "tensors": tensors,
                "objects": objects,
                "look_ms": round(median(looked), 1),
                "look_least_ms": round(min(looked), 1),
                "meet_ms": round(median(met), 1),
                "meet_least_ms": round(min(met), 1),
            }
        )
    return rows


def milliseconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return 1000 * (time.thread_time() - began)
