"""From `scaler.update()` to the answers of a running server: what torch did is what is told."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ampmon
from serving import Server


UPDATES = 600
DEADLINE_S = 60.0


def wait_for(condition: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """What ``condition`` returns once it is true."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return value


def train(scaler: torch.amp.GradScaler, updates: int) -> tuple[list[float], list[tuple[int, str]]]:
    """Two optimizers under a scale that grows until fp16 overflows: the scale of each update, and each skip of each.

    The bookkeeping is the stock scaler's own: its scale, and its found_inf before `update()`.
    """
    torch.manual_seed(0)
    first = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    second = torch.nn.Linear(16, 4)
    optimizers = {
        "SGD": torch.optim.SGD(first.parameters(), lr=1e-3),
        "AdamW": torch.optim.AdamW(second.parameters(), lr=1e-3, fused=True),
    }
    scales, skips = [], []
    for update in range(updates):
        inputs, targets = torch.randn(8, 16), torch.randint(0, 4, (8,))
        with torch.autocast("cpu", dtype=torch.float16):
            losses = [
                torch.nn.functional.cross_entropy(model(inputs), targets)
                for model in (first, second)
            ]
        weights = ((120.0, 1.0), (1.0, 50.0), (120.0, 50.0))[update % 3]
        scaler.scale(weights[0] * losses[0] + weights[1] * losses[1]).backward()
        for optimizer in optimizers.values():
            scaler.step(optimizer)
        scales.append(scaler.get_scale())
        for name, optimizer in optimizers.items():
            if sum(flag.item() for flag in scaler._found_inf_per_device(optimizer).values()):
                skips.append((update, name))
        scaler.update()
        for optimizer in optimizers.values():
            optimizer.zero_grad()
    return scales, skips


def test_the_server_tells_what_the_stock_scaler_did(server: Server) -> None:
    """Scales and skips of 600 updates with two optimizers, read back over HTTP, are the stock scaler's own."""
    arguments = {"init_scale": 2.0**10, "growth_interval": 5}
    scales, skips = train(torch.amp.GradScaler("cpu", **arguments), UPDATES)
    run_id = ampmon.init("tests", "ledger")
    train(ampmon.GradScaler("cpu", **arguments), UPDATES)
    ampmon.finish(deadline_s=30.0)

    summary = wait_for(
        lambda: (run := server.get(f"/runs/{run_id}"))["status"] == "finished" and run
    )
    updates = server.get(f"/runs/{run_id}/updates?limit=1000000")
    ledger = server.get(f"/runs/{run_id}/skips?limit=1000")["skips"]
    assert updates["step"] == list(range(UPDATES))
    assert updates["scale"] == scales
    assert sorted((row["step"], row["optimizer"]) for row in ledger) == sorted(skips)
    skipped = {step for step, _ in skips}
    assert [step for step, flag in enumerate(updates["skipped"]) if flag] == sorted(skipped)
    assert {name for _, name in skips} == {"SGD", "AdamW"}
    assert 0 < len(skipped) < len(skips), "some updates must skip both optimizers and some only one"
    assert (summary["updates"], summary["skipped"]) == (UPDATES, len(skipped))
    assert summary["effective_updates"] == UPDATES - len(skipped)
    assert (summary["lost_records"], summary["errors"]) == (0, 0)


TRAINER = """
import sys, time, torch, ampmon
ampmon.init("tests", "trainer")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.named_parameters(), lr=1e-3)
scaler = ampmon.GradScaler("cpu", init_scale=2.0, growth_interval=40, monitor=ampmon.Config(every=10))
print(scaler.monitor.run_id, flush=True)
for update in range(int(sys.argv[1])):
    scaler.scale(model(torch.ones(4, 8)).sum()).backward()
    if update % 100 == 99:
        model.bias.grad[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    ampmon.log({"loss": float("nan") if update == 3 else 1.0 / (update + 1)})
    time.sleep(float(sys.argv[2]))
"""


class Trainer:
    """A training process, killed at the end if it has not ended by itself; ``run_id`` is the run that it began."""

    def __init__(self, updates: int, pause_s: float) -> None:
        command = [sys.executable, "-c", TRAINER, str(updates), str(pause_s)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.run_id = self.process.stdout.readline().strip()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_server_that_goes_and_comes_back_has_every_update_once(server: Server, end: str) -> None:
    """The server is ended in the middle of training and started again: nothing is lost, nothing stored twice."""
    with Trainer(400, 0.01) as trainer:
        run_id = trainer.run_id
        wait_for(lambda: stored(server, run_id) > 50)
        getattr(server, end)()
        time.sleep(1.0)
        assert trainer.process.poll() is None, "training must go on without the server"
        server.start()
        assert trainer.process.wait(DEADLINE_S) == 0
    wait_for(lambda: stored(server, run_id) == 400)
    updates = server.get(f"/runs/{run_id}/updates")
    assert updates["step"] == list(range(400))
    summary = wait_for(
        lambda: (run := server.get(f"/runs/{run_id}"))["status"] == "finished" and run
    )
    assert (summary["updates"], summary["skipped"], summary["lost_records"]) == (400, 4, 0)
    assert [
        row["culprits"][0]["parameter"] for row in server.get(f"/runs/{run_id}/skips")["skips"]
    ] == ["bias"] * 4


def test_a_trainer_killed_is_delivered_to_its_last_update_and_marked_crashed(
    server: Server,
) -> None:
    """After `kill -9` of the trainer the sender delivers what is on disk, and the run is `crashed`."""
    with Trainer(100_000, 0.002) as trainer:
        run_id = trainer.run_id
        wait_for(lambda: stored(server, run_id) > 100)
    wait_for(lambda: server.get(f"/runs/{run_id}")["status"] == "crashed")
    summary = server.get(f"/runs/{run_id}")
    steps = server.get(f"/runs/{run_id}/updates")["step"]
    assert steps == list(range(len(steps)))
    assert (summary["updates"], summary["lost_records"]) == (len(steps), 0)


def test_records_wait_for_a_server_that_is_not_there_yet(
    new_server: Callable[..., Server], data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training without a server warns once and loses nothing: all arrives when it is started."""
    later = Server(data_directory)
    monkeypatch.setenv("AMPMON_MODE", "online")
    monkeypatch.setenv("AMPMON_URL", later.url)
    with Trainer(150, 0.01) as trainer:
        assert trainer.process.wait(DEADLINE_S) == 0
    started = new_server(data_directory, port=later.port)
    wait_for(lambda: stored(started, trainer.run_id) == 150)
    assert started.get(f"/runs/{trainer.run_id}")["lost_records"] == 0


def stored(server: Server, run_id: str) -> int:
    """How many updates of the run the server has."""
    answer = server.request("GET", f"/api/v1/runs/{run_id}")
    return int(answer.json()["updates"]) if answer.status == 200 else 0
