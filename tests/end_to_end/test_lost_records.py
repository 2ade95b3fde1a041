"""Records lost on the training machine become a gap that the server reports, and later records still arrive."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
import torch

import ampmon
from serving import Server
from training import stored
from waiting import DEADLINE_S, wait_for


def test_a_spool_removed_in_mid_run_is_a_gap(server: Server, data_directory: Path) -> None:
    """After a running sender's spools are deleted, sent and later records are stored and the others count as lost."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    run = scaler.monitor.run_id

    def train() -> int:
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return next(updates)

    updates = itertools.count(1)
    while train() < 20:
        pass
    wait_for(lambda: stored(server, run) == 20)
    # Renamed first: rmtree fails if the sender makes a file while it works.
    shutil.rmtree((data_directory / "spool").rename(data_directory / "removed"))
    with pytest.warns(ampmon.AmpmonWarning, match="were deleted") as warned:
        wait_for(lambda: train() and warned and stored(server, run) > 20)
    ampmon.finish(DEADLINE_S)
    wait_for(lambda: server.get(f"/runs/{run}")["status"] == "finished")
    summary = server.get(f"/runs/{run}")
    assert summary["lost_records"] > 0
    assert summary["updates"] == next(updates) - 1 - summary["lost_records"]
