"""Sends four scalars per update to other tools' servers from several clients, a run each, until the time is up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from benchmarks.store import load, peer_servers
from benchmarks.store.filling import SPACING_US, START
from benchmarks.store.peer_servers import TRACKIO_TOKEN
from benchmarks.store.timing import Client


SIZE = 250
"""Updates in a batch, because MLflow's server accepts a thousand scalars at once."""

Post: TypeAlias = Callable[[int], object]
"""Sends the batch of updates that begins at a step."""


class Peer(NamedTuple):
    """A tool's package, how to start its server, and how to create a numbered client's `Post`."""

    package: str
    serve: Callable[[Path], AbstractContextManager[str]]
    join: Callable[[str, int], Post]


def send(peer: Peer, directory: Path, crowds: Sequence[int], limit_s: float) -> Iterator[load.Sent]:
    """Yield the updates that its server took from each crowd of clients, one crowd after another. Blocks."""
    with peer.serve(directory) as url:
        for number, clients in enumerate(crowds):
            posts = [peer.join(url, 1000 * number + client) for client in range(clients)]
            yield load.at_once([partial(_until, post) for post in posts], limit_s)


def _until(post: Post, deadline: float) -> tuple[int, int]:
    records = 0
    while time.perf_counter() < deadline:
        post(records)
        records += SIZE
    return records, 0


def _scalars(first: int) -> Iterator[tuple[int, dict[str, float]]]:
    for step in range(first, first + SIZE):
        yield step, {"scale": 65536.0, "loss": 2.5, "lr": 1e-3, "duration": 50_123.5}


def _mlflow(url: str, _: int) -> Post:
    client = Client()
    begun = client.post(f"{url}/api/2.0/mlflow/runs/create", {"experiment_id": "0"})
    run = json.loads(begun)["run"]["info"]["run_id"]

    def post(first: int) -> object:
        metrics: list[dict[str, Any]] = [
            {"key": name, "value": value, "step": step, "timestamp": _millis(step)}
            for step, scalars in _scalars(first)
            for name, value in scalars.items()
        ]
        body = {"run_id": run, "metrics": metrics}
        return client.post(f"{url}/api/2.0/mlflow/runs/log-batch", body)

    return post


def _trackio(url: str, number: int) -> Post:
    client = Client(headers={"x-trackio-write-token": TRACKIO_TOKEN})

    def post(first: int) -> object:
        logs = [
            {"project": "benchmark", "run": f"run {number}", "metrics": scalars, "step": step}
            for step, scalars in _scalars(first)
        ]
        return client.post(f"{url}/api/bulk_log", {"logs": logs, "hf_token": None})

    return post


def _millis(step: int) -> int:
    return (START + SPACING_US * step) // 1000


TOOLS = {
    "MLflow": Peer("mlflow", peer_servers.mlflow, _mlflow),
    "trackio": Peer("trackio", peer_servers.trackio, _trackio),
}
