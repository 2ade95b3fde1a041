"""The host time that logging four scalars adds to an update: by ampmon, which also records the update, and by others.

Each tool has its own process, so no other tool's threads run beside it. An iteration of the stock scaler and the same
iteration with the tool take turns, and the percentiles of their times are subtracted. Before each iteration Python
rests, as in training while torch works. Without the rest, a tool's background thread would work during the stock
scaler's turn and count as its time. After the rest, all code runs colder than in the turns of `host_cost`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

import ampmon
from benchmarks import peers
from benchmarks.given import SCALER, iteration
from benchmarks.host_cost import ELEMENTS, TENSORS, alternate, sweep
from benchmarks.paired import Work, shown
from benchmarks.processes import apart
from benchmarks.report import filled
from benchmarks.server import serving


SCALARS = {"loss": 2.5, "lr": 1e-3, "norm": 0.75, "tokens": 8192.0}
REST_S = 1e-3

Log: TypeAlias = Callable[[Mapping[str, float]], object]


class Tool(NamedTuple):
    """How to start a tool on its own folder, yielding its log function, and the package it needs."""

    start: Callable[[Path], AbstractContextManager[Log]]
    peer: str | None = None


class Effort(NamedTuple):
    """How long to measure one row: ``rested`` or ``swept`` pairs, or as many as fit into ``limit_s`` seconds."""

    rested: int = 3000
    swept: int = 200
    limit_s: float = 5.0


@contextmanager
def _nothing(_: Path) -> Iterator[Log]:
    yield lambda scalars: None


@contextmanager
def _ampmon(directory: Path) -> Iterator[Log]:
    with serving(directory) as (url, _, _):
        ampmon.init("benchmark", dir=directory, url=url, mode="online")
        yield ampmon.log
        ampmon.finish()


@contextmanager
def _trackio(_: Path) -> Iterator[Log]:
    import trackio

    trackio.init(project="benchmark")
    yield trackio.log
    trackio.finish()


@contextmanager
def _tensorboard(directory: Path) -> Iterator[Log]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(directory) as writer:
        steps = count()

        def log(scalars: Mapping[str, float]) -> None:
            step = next(steps)
            for name, value in scalars.items():
                writer.add_scalar(name, value, step)

        yield log


@contextmanager
def _wandb(directory: Path) -> Iterator[Log]:
    import wandb

    with wandb.init(project="benchmark", dir=directory) as run:
        yield run.log


@contextmanager
def _mlflow(directory: Path, *, synchronous: bool) -> Iterator[Log]:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{directory}/mlflow.db")
    steps = count()
    with mlflow.start_run():
        yield lambda scalars: mlflow.log_metrics(
            dict(scalars), step=next(steps), synchronous=synchronous
        )


AMPMON = "ampmon, the update too"
TOOLS = {
    "nothing, the noise": Tool(_nothing),
    AMPMON: Tool(_ampmon),
    "trackio": Tool(_trackio, "trackio"),
    "TensorBoard": Tool(_tensorboard, "tensorboard"),
    "W&B offline": Tool(_wandb, "wandb"),
    "MLflow, asynchronous": Tool(partial(_mlflow, synchronous=False), "mlflow-skinny"),
    "MLflow": Tool(partial(_mlflow, synchronous=True), "mlflow-skinny"),
}


def measure(directory: Path) -> list[dict[str, Any]]:
    """Rows for each tool, rested and swept, 6 and 148 tensors. Takes about two minutes. Fills ``directory``."""
    return compare(directory, list(TOOLS), Effort())


def compare(directory: Path, names: list[str], effort: Effort) -> list[dict[str, Any]]:
    """Rows for each tool. If a tool cannot be measured, its row says why."""
    rows: list[dict[str, Any]] = []
    with peers.quiet(directory):
        for place, name in enumerate(shown(names, "host time of an update, beside others")):
            folder = directory / str(place)
            folder.mkdir()
            work = partial(apart, _measure_tool, name, folder, effort)
            measured, note = peers.tried(TOOLS[name].peer, work)
            rows += measured or [{"what": name, "note": note}]
    return filled(rows)


def _measure_tool(name: str, directory: Path, effort: Effort) -> list[dict[str, Any]]:
    """The rows of one tool. Runs in a child process."""
    torch.set_num_threads(1)
    rows = []
    # Some tools greet on stdout.
    with open(os.devnull, "w") as void, redirect_stdout(void), TOOLS[name].start(directory) as log:
        for swept in (False, True):
            for tensors in TENSORS:
                plain = given_iteration(tensors, monitored=False)
                watched = given_iteration(tensors, monitored=name == AMPMON)

                def logged(iterate: Work = watched) -> None:
                    iterate()
                    log(SCALARS)

                works = {"stock": plain, "logged": logged}
                pairs = effort.swept if swept else effort.rested
                before = sweep() if swept else partial(time.sleep, REST_S)
                times = alternate(works, pairs, before=before, limit_s=effort.limit_s)
                rows.append(_row(name, tensors, swept, times))
    return rows


def given_iteration(tensors: int, *, monitored: bool) -> Work:
    """An iteration over small gradients. A monitored scaler records it but takes no sample."""
    gradients = [torch.ones(ELEMENTS) for _ in range(tensors)]
    if not monitored:
        return iteration(gradients, torch.amp.GradScaler(**SCALER))
    config = ampmon.Config(every=10**9)
    return iteration(gradients, ampmon.GradScaler(**SCALER, monitor=config))


def _row(name: str, tensors: int, swept: bool, times: dict[str, list[float]]) -> dict[str, Any]:
    plain, logged = (np.percentile(each, (50, 99)) for each in times.values())
    return {
        "what": name,
        "tensors": tensors,
        "caches": "swept" if swept else "rested",
        "pairs": len(times["stock"]),
        "stock_p50_us": round(float(plain[0]), 1),
        "added_p50_us": round(float(logged[0] - plain[0]), 1),
        "added_p99_us": round(float(logged[1] - plain[1]), 1),
        "note": "",
    }
