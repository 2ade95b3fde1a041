"""Tools that log four scalars per call until their process is killed, and how each reads back what is left.

The others start as in `peers_host_cost`, with their defaults, and are read by their own readers. ampmon records an
update of a small network with each call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import NAMESPACE_URL, uuid5

import torch

import ampmon
from ampmon import sender
from benchmarks import peers, peers_host_cost
from benchmarks.delivery.training import small_model
from benchmarks.peers_host_cost import Log
from benchmarks.store.timing import Client


Scalars: TypeAlias = dict[str, float]
Found: TypeAlias = dict[str, list[tuple[int, float]]]
"""Steps and values as read back, by scalar name."""

NAMES = ("call", "loss", "lr", "norm")
PACE_S = 0.01
RETURNED = "returned"
"""A file with a byte for each call that has returned."""

JOB_VARIABLE = "BENCHMARK_JOB"
"""Set in the environment of all processes that a logging process starts. `job` finds them by it."""

TOKEN, URL = "AMPMON_TOKEN", "AMPMON_URL"
DELIVERED_WITHIN_S = 60.0


class Tool(NamedTuple):
    """How to start a tool on its own folder and read it back, and the package it needs."""

    start: Callable[[Path], AbstractContextManager[Log]]
    read: Callable[[Path], Found]
    peer: str | None = None


def scalars(call: int) -> Scalars:
    """The values that a call logs, by its number."""
    return {
        "call": float(call),
        "loss": 2.5 / (call + 1),
        "lr": 1e-3 * (1 + call % 7),
        "norm": 0.75,
    }


def log_until_killed(name: str, folder: Path) -> None:
    """Log a hundred times a second forever, and note each returned call in `RETURNED`."""
    torch.set_num_threads(1)
    os.environ[JOB_VARIABLE] = str(folder)
    returned = os.open(folder / RETURNED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with (
        peers.quiet(folder),
        open(os.devnull, "w") as void,
        redirect_stdout(void),  # some print a greeting
        TOOLS[name].start(folder) as log,
    ):
        began = time.perf_counter()
        call = 0
        while True:
            time.sleep(max(0.0, began + call * PACE_S - time.perf_counter()))
            log(scalars(call))
            os.write(returned, b".")
            call += 1


def read_back(name: str, folder: Path) -> Found:
    with peers.quiet(folder), open(os.devnull, "w") as void, redirect_stdout(void):
        return TOOLS[name].read(folder)


def job(folder: Path) -> list[int]:
    """The ids of processes started by the one that logs into a folder, directly or through others."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"{JOB_VARIABLE}={folder}".encode() in environment:
                found.append(int(process.name))
    return found


# -- ampmon -----------------------------------------------------------------------------------------------------------


@contextmanager
def _ampmon(folder: Path) -> Iterator[Log]:
    ampmon.init("benchmark", dir=folder, run_id=_run_id(folder), mode="online")
    iterate = small_model(ampmon.GradScaler)

    def log(values: Mapping[str, float]) -> None:
        iterate()
        ampmon.log(values)

    yield log


def _run_id(folder: Path) -> str:
    return str(uuid5(NAMESPACE_URL, folder.as_uri()))


def _read_ampmon(folder: Path) -> Found:
    """Read from the server once a sender has reported the end. If the sender was killed too, start another one."""
    client = Client(os.environ[TOKEN])
    run = f"{os.environ[URL]}/api/v1/runs/{_run_id(folder)}"
    until = time.monotonic() + DELIVERED_WITHIN_S
    while _status(run, client) != "crashed":
        if time.monotonic() > until:
            raise TimeoutError(f"{run} is not known to have ended")
        sender.ensure_running(folder)
        time.sleep(0.1)
    updates = json.loads(client.get(f"{run}/updates?limit=1000000"))["step"]
    found: Found = {}
    for name in NAMES:
        values = json.loads(client.get(f"{run}/scalars?name={name}&limit=1000000"))
        logged = dict(zip(values["step"], values["value"], strict=True))
        # A call counts as found if both its update and its scalars are there.
        found[name] = [(step, logged[step]) for step in updates if step in logged]
    return found


def _status(run: str, client: Client) -> str | None:
    try:
        return str(json.loads(client.get(run))["status"])
    except AssertionError:
        return None  # nothing has arrived yet


# -- the others -------------------------------------------------------------------------------------------------------


def _read_tensorboard(folder: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events: Any = EventAccumulator(str(folder), size_guidance={SCALARS: 0}).Reload()
    tags = events.Tags()[SCALARS]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def _read_trackio(folder: Path) -> Found:
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = Api().runs("benchmark")
    logs = SQLiteStorage.get_logs("benchmark", run.name)
    return {name: [(row["step"], row[name]) for row in logs if name in row] for name in NAMES}


def _read_wandb(folder: Path) -> Found:
    """Read with wandb's own viewer of the files that it would send."""
    found: Found = {name: [] for name in NAMES}
    for file in folder.glob("wandb/offline-run-*/*.wandb"):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        for line in printed.splitlines():
            item = json.loads(line).get("history", {}).get("item", {})
            for name in set(NAMES) & set(item):
                found[name].append((item["_step"], item[name]))
    return found


def _read_mlflow(folder: Path) -> Found:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs(["0"])
    return {
        name: [
            (metric.step, metric.value)
            for metric in client.get_metric_history(run.info.run_id, name)
        ]
        for name in NAMES
    }


def _peer(name: str, read: Callable[[Path], Found]) -> Tool:
    tool = peers_host_cost.TOOLS[name]
    return Tool(tool.start, read, tool.peer)


AMPMON = "ampmon, the update too"
TOOLS = {
    AMPMON: Tool(_ampmon, _read_ampmon),
    "TensorBoard": _peer("TensorBoard", _read_tensorboard),
    "trackio": _peer("trackio", _read_trackio),
    "W&B offline": _peer("W&B offline", _read_wandb),
    "MLflow, asynchronous": _peer("MLflow, asynchronous", _read_mlflow),
    "MLflow": _peer("MLflow", _read_mlflow),
}
