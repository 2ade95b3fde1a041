"""What is lost on the training machine is a gap that the server tells of, and what came after it is there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
import torch

import ampmon
from serving import Server
from training import stored
from waiting import wait_for


def test_a_spool_removed_in_mid_run_is_a_gap(server: Server, data_directory: Path) -> None:
    """Somebody deletes all spools under a running sender: what was sent and what follows is stored, the rest lost."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    run = scaler.monitor.run_id

    def train(updates: int, pause_s: float) -> None:
        for _ in range(updates):
            scaler.scale(model(torch.ones(2, 4)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            time.sleep(pause_s)

    train(20, 0.0)
    wait_for(lambda: stored(server, run) == 20)
    shutil.rmtree(data_directory / "spool")
    with pytest.warns(ampmon.AmpmonWarning, match="somebody removed"):
        train(30, 0.1)
    ampmon.finish(20.0)
    wait_for(lambda: server.get(f"/runs/{run}")["status"] == "finished")
    summary = server.get(f"/runs/{run}")
    assert 0 < summary["lost_records"] < 25
    assert summary["updates"] == 50 - summary["lost_records"]
