"""How many of 20 spikes of the loss scale, each one update long, a chart of a million updates shows.

Each tool holds the same scales at the same steps. Its own server, started as its users start it, gets the request of
its own page: ampmon's at 1000 pixels, TensorBoard's for a tag's scalars, MLflow's for 320 points of the history,
trackio's for a run's logs. A spike is shown if a point at its step has its value. Times end when the response has
arrived: the first after the server's start, and the median of five more. The tools' own writers or bulk inserts fill
the stores, which is not timed.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlencode

import numpy as np

from ampmon_server.settings import Settings
from benchmarks import peers
from benchmarks.report import filled
from benchmarks.server import serving
from benchmarks.store import FULL, Effort, peer_data, peer_servers
from benchmarks.store.filling import fill
from benchmarks.store.real import real
from benchmarks.store.timing import Client
from benchmarks.store.track import SPIKE, Track, spikes, track
from tests.waiting import wait_for


SPIKES = 20
AGAIN = 5
READ_S = 120.0
"""The most seconds in which TensorBoard reads a million events."""
MLFLOW_POINTS = 320
"""The number of points that MLflow's page requests."""

Points: TypeAlias = list[tuple[int, float]]
"""Steps and scales, as drawn."""


class Answer(NamedTuple):
    """What a tool draws, and its server's seconds for the first request and for each later one."""

    points: Points
    first: float
    again: list[float]


Ask: TypeAlias = Callable[[Path, Track, Effort], Answer]


def measure(directory: Path, effort: Effort = FULL) -> list[dict[str, Any]]:
    """A row for each tool. Takes two minutes. Fills ``directory``."""
    at = spikes(effort.spiky_updates, SPIKES)
    series = track(effort.spiky_updates, at)
    rows = []
    with peers.quiet(directory):
        for tool, (peer, ask) in TOOLS.items():
            work = directory / tool
            work.mkdir()
            rows.append(_row(tool, peer, partial(ask, work, series, effort), series))
    return filled(rows)


def shown(points: Points, at: Mapping[int, float]) -> int:
    """How many of the spikes, given as values by step, have a point with their step and value."""
    drawn = dict.fromkeys(points)
    return sum((step, value) in drawn for step, value in at.items())


def _row(tool: str, peer: str | None, ask: Callable[[], Answer], series: Track) -> dict[str, Any]:
    answer, note = peers.tried(peer, ask)
    if answer is None:
        return {"what": tool, "note": note}
    at = {int(step): SPIKE for step in np.flatnonzero(series.scale == SPIKE)}
    return {
        "what": tool,
        "spikes": len(at),
        "shown": shown(answer.points, at),
        "points": len(answer.points),
        "first_ms": round(1000 * answer.first, 1),
        "again_ms": round(1000 * median(answer.again), 1),
        "note": None,
    }


def _timed(ask: Callable[[], bytes], read: Callable[[bytes], Points]) -> Answer:
    times = []
    for _ in range(1 + AGAIN):
        began = time.perf_counter()
        body = ask()
        times.append(time.perf_counter() - began)
    return Answer(read(body), times[0], times[1:])


def _ampmon(work: Path, series: Track, effort: Effort) -> Answer:
    (run,) = fill(Settings(data_directory=work), [(series, real(effort.real_samples))])
    with serving(work) as (url, token, _):
        client = Client(token)
        path = f"{url}/api/v1/runs/{run}/figures/scale?width=1000"
        return _timed(lambda: client.get(path), _line)


def _line(body: bytes) -> Points:
    """The points of the figure's line. The figure's heights are log2 of the scale."""
    traces = json.loads(body)["data"]
    line = next(trace for trace in traces if trace["name"] == "loss scale")
    return list(zip(_typed(line["x"]), np.exp2(_typed(line["y"])).tolist(), strict=True))


def _typed(array: dict[str, str]) -> list[Any]:
    values: list[Any] = np.frombuffer(b64decode(array["bdata"]), array["dtype"]).tolist()
    return values


def _tensorboard(work: Path, series: Track, _: Effort) -> Answer:
    peer_data.to_tensorboard(work / "run", series)
    with peer_servers.tensorboard(work) as url:
        client = Client()
        tags = f"{url}/data/plugin/scalars/tags"
        wait_for(lambda: "run" in json.loads(client.get(tags)), "the run", READ_S)
        query = urlencode({"run": "run", "tag": peer_data.METRIC, "format": "json"})
        return _timed(
            lambda: client.get(f"{url}/data/plugin/scalars/scalars?{query}"),
            lambda body: [(int(step), float(value)) for _, step, value in json.loads(body)],
        )


def _mlflow(work: Path, series: Track, _: Effort) -> Answer:
    with peer_servers.mlflow(work) as url:
        run = peer_data.to_mlflow(url, work / "mlflow.db", series)
        client = Client()
        query = urlencode(
            {"run_ids": run, "metric_key": peer_data.METRIC, "max_results": MLFLOW_POINTS}
        )
        path = f"{url}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?{query}"
        return _timed(
            lambda: client.get(path),
            lambda body: [
                (int(point.get("step", 0)), float(point["value"]))
                for point in json.loads(body)["metrics"]
            ],
        )


def _trackio(work: Path, series: Track, _: Effort) -> Answer:
    with peer_servers.trackio(work) as url:
        run = peer_data.to_trackio(url, series)
        client = Client()
        question = {"project": peer_data.PROJECT, "runs": [{"run": run}], "scalar_only": True}
        return _timed(
            lambda: client.post(f"{url}/api/get_logs_batch", question),
            lambda body: [
                (int(log["step"]), float(log[peer_data.METRIC]))
                for log in json.loads(body)["data"][0]["logs"]
            ],
        )


TOOLS: dict[str, tuple[str | None, Ask]] = {
    "ampmon": (None, _ampmon),
    "TensorBoard": ("tensorboard", _tensorboard),
    "MLflow": ("mlflow", _mlflow),
    "trackio": ("trackio", _trackio),
}
