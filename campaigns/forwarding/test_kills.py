"""A server killed while it forwards: FORWARD_KILLS times for TensorBoard, and a quarter as often for MLflow."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from posted import PostedRun
from server.test_forwarding import (
    MLFLOW,
    check_mlflow,
    check_whole,
    empty_mlflow,
    held,
    is_whole,
    points,
    posted,
    rows,
    uri,
    written,
)
from serving import Server
from waiting import wait_for


__all__ = ["empty_mlflow", "uri"]  # fixtures
KILLS = int(os.environ.get("FORWARD_KILLS", "8"))


def test_no_value_is_lost_or_doubled_by_kills_at_any_time(
    tmp_path: Path, new_server: Callable[..., Server]
) -> None:
    """A server killed repeatedly while it forwards leaves exactly one copy of every value, in step order."""
    folder, chance = tmp_path / "board", random.Random(7)
    server = new_server(options=["--forward", f"tensorboard:{folder}"])
    run = PostedRun(server)
    for _ in range(KILLS):
        before = written(folder)
        for _ in range(2):
            run.updates(500, sampled=False)
        wait_for(lambda before=before: written(folder) > before, "something of it")
        wait_for(lambda: chance.random() < 0.3, "a moment")
        server.kill()
        server.start()
    run.updates(1, skipped=True)
    run.event("finish")
    wait_for(lambda: is_whole(server), "all updates")
    found = points(folder)
    assert sum(tag == "amp/scale" for tag, _, _ in found) == KILLS * 1000 + 1
    check_whole(server.get, str(run.run_id), found)
    steps = [step for tag, step, _ in found if tag == "amp/scale"]
    assert steps == sorted(steps)


KILLED_IN_MLFLOW = """
import os, signal
from ampmon_server.background.forwarding.mlflow import MLflow
made = MLflow._client.func

def client(self):
    found, written = made(self), []
    log = found.log_batch

    def log_batch(*arguments, **named):
        log(*arguments, **named)
        written.append(1)
        if len(written) == {batches}:
            os.kill(os.getpid(), signal.SIGKILL)

    found.log_batch = log_batch
    return found

MLflow._client.func = client
"""
"""Kills the server after its nth batch of metrics to MLflow, before the cursor moves."""


@MLFLOW
def test_mlflow_holds_nothing_twice_after_kills(
    uri: str, new_server: Callable[..., Server]
) -> None:
    """Kills between MLflow's commit and the cursor's leave every value exactly once, in one run."""
    forward, chance = ["--forward", f"mlflow:{uri}"], random.Random(7)
    server = new_server(options=forward, preload="mlflow")
    wait_for(lambda: rows(server, "SELECT since FROM destinations"), "the time to forward from")
    server.stop()
    server.options = []
    server.start()
    run = posted(server, 1200)
    server.stop()
    server.options = forward
    for _ in range(max(1, KILLS // 4)):
        before = held(uri, "amp/scale")
        server.before = KILLED_IN_MLFLOW.format(batches=chance.randrange(1, 4))
        server.start()
        assert server.process is not None
        wait_for(lambda: server.process.poll() is not None, "the kill")
        assert held(uri, "amp/scale") >= max(before, 1)
    server.before = ""
    server.start()
    run.event("finish")
    wait_for(lambda: is_whole(server), "the rest")
    assert held(uri, "amp/scale") == 1200
    check_mlflow(server.get, str(run.run_id), uri)
