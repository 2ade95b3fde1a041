"""`ampmon run torchrun`: an unmodified multi-rank script is monitored, and ends as it does without ampmon."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import scripts
from end_to_end.test_ampmon_run import run
from recording import recordings
from serving import free_port


RANK = """
import hashlib, json, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
skips = 0
for step in range(6):
    loss = model(torch.ones(2, 4) * (step + rank)).square().mean()
    scaler.scale(loss * float("inf") if step == 2 and rank == 1 else loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skips += scaler.get_scale() < before
    optimizer.zero_grad()
weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
result = [hashlib.sha256(weights).hexdigest(), skips]
with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
    json.dump(result, file)
dist.barrier()
dist.destroy_process_group()
"""
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]


def results(folder: Path) -> list[list[object]]:
    """The ranks' results: a digest of the weights and the number of skips."""
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def launched(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The result folder and completed process of a DDP script under `ampmon run torchrun`, offline."""
    folder = tmp_path_factory.mktemp("launched")
    script = folder / "train.py"
    script.write_text(RANK)
    words = [*TORCHRUN, f"--master-port={free_port()}", str(script), str(folder)]
    environment = {"AMPMON_DIR": str(folder / "ampmon"), "AMPMON_MODE": "offline"}
    return folder, run("python", *words, OMP_NUM_THREADS="1", **environment)


def test_ranks_of_torchrun_are_watched(
    launched: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    """Each rank of an unmodified script records its updates and the skip, in one run, with parameter names."""
    folder, done = launched
    assert done.returncode == 0, done.stderr
    recorded = {each.attempt.rank: each for each in recordings(folder / "ampmon")}
    assert sorted(recorded) == [0, 1]
    assert len({each.attempt.run_id for each in recorded.values()}) == 1
    for each, (_, skips) in zip(recorded.values(), results(folder), strict=True):
        assert len(each.updates) == 6
        assert sum(step.skipped for update in each.updates for step in update.optimizers) == skips
        names = [parameter.name for parameter in each.header().parameters]
        assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert recorded[0].attempt.name == "train"


def test_ranks_of_torchrun_end_in_the_same_weights(
    launched: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Weights and skips match the script without `ampmon run` bit for bit; ampmon prints one line."""
    folder, done = launched
    alike = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    alike |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    command = [str(folder / "train.py"), "."]
    stock = [
        scripts.Script(*command, env={**alike, "RANK": str(rank)}, cwd=tmp_path) for rank in (0, 1)
    ]
    assert [each.wait() for each in stock] == [0, 0]
    assert results(folder) == results(tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ampmon")]
    assert lines == [
        f"ampmon: recording this run in {folder / 'ampmon'}; send it with `ampmon sync`"
    ]
