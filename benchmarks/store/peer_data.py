"""Puts a run's loss scale into the stores of other tools, with their own writers if those are fast enough."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from benchmarks.paired import shown
from benchmarks.store.filling import SPACING_US, START
from benchmarks.store.peer_servers import TRACKIO_TOKEN
from benchmarks.store.timing import Client
from benchmarks.store.track import Track


METRIC = "scale"
PROJECT = "benchmark"
_CHUNK = 20_000


def to_tensorboard(directory: Path, track: Track) -> None:
    """Write an event file with TensorBoard's own record writer."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    directory.mkdir()
    with (directory / "events.out.tfevents.1790000000.benchmark").open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=START / 1e6, file_version="brain.Event:2").SerializeToString())
        for first in shown(range(0, len(track), _CHUNK), "TensorBoard's events"):
            for step, scale in _points(track, first):
                event = Event(
                    wall_time=(START + SPACING_US * step) / 1e6,
                    step=step,
                    summary=Summary(value=[Summary.Value(tag=METRIC, simple_value=scale)]),
                )
                writer.write(event.SerializeToString())


def to_mlflow(url: str, database: Path, track: Track) -> str:
    """Have the server create a run, write its history straight into the server's table for speed, and return its id."""
    client = Client()
    run: str = json.loads(
        client.post(f"{url}/api/2.0/mlflow/runs/create", {"experiment_id": "0", "start_time": 0})
    )["run"]["info"]["run_id"]
    with sqlite3.connect(database, timeout=60) as connection:
        for first in shown(range(0, len(track), _CHUNK), "MLflow's metrics"):
            connection.executemany(
                "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) "
                "VALUES (?, ?, ?, ?, ?, 0)",
                [
                    (METRIC, scale, (START + SPACING_US * step) // 1000, run, step)
                    for step, scale in _points(track, first)
                ],
            )
    connection.close()
    return run


def to_trackio(url: str, track: Track) -> str:
    """Log a run through the server, as other machines do, and return its name."""
    client = Client(headers={"x-trackio-write-token": TRACKIO_TOKEN})
    run = "run"
    for first in shown(range(0, len(track), _CHUNK), "trackio's logs"):
        logs = [
            {"project": PROJECT, "run": run, "metrics": {METRIC: scale}, "step": step}
            for step, scale in _points(track, first)
        ]
        client.post(f"{url}/api/bulk_log", {"logs": logs, "hf_token": None})
    return run


def _points(track: Track, first: int) -> Iterator[tuple[int, float]]:
    """Steps and scales of the chunk that begins at ``first``."""
    return enumerate(track.scale[first : first + _CHUNK].tolist(), first)
