"""Records trainings, repeats them under other policies, and compares the skips with the simulator's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import torch

import ampmon
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.scalers import Setting
from ampmon_server.analysis.policy.simulate import Simulator
from ampmon_server.settings import Settings
from ampmon_server.store import Store
from campaigns.policy.tasks import ALL, train
from draining import Into, drain


RECORDED: Mapping[str, Mapping[str, float]] = {"default": {}, "every 50": {"growth_interval": 50}}
"""The policies that runs are recorded under."""

SETTINGS: Mapping[str, Setting] = {
    "growth_interval=20": Setting("torch", 2.0**16, 2.0, 0.5, 20),
    "growth_interval=100": Setting("torch", 2.0**16, 2.0, 0.5, 100),
    "growth_interval=400": Setting("torch", 2.0**16, 2.0, 0.5, 400),
    "init_scale=2^8, growth_interval=30": Setting("torch", 2.0**8, 2.0, 0.5, 30),
    "by 4 and 1/4, growth_interval=50": Setting("torch", 2.0**16, 4.0, 0.25, 50),
    "fixed at 2^9": Setting("fixed", 2.0**9),
    "Megatron's, window 50": Setting("megatron", 2.0**32, growth_interval=50),
    "fairseq's, window 100": Setting("fairseq", 2.0**15, growth_interval=100),
}
"""The policies that runs are simulated under, and trained under again."""


@dataclass(frozen=True)
class Row:
    """One simulation beside the real training."""

    task: str
    recorded: str
    setting: str
    real: int
    low: int
    expected: float
    high: int
    known: bool

    @property
    def inside(self) -> bool:
        return self.low <= self.real <= self.high


def record(task: str, updates: int, folder: Path, policy: Mapping[str, float]) -> History:
    """Train with monitoring, and return the stored history, whose skips must be torch's."""
    os.environ.update(AMPMON_DIR=str(folder / "spool"), AMPMON_MODE="offline")
    run_id = ampmon.init("policy", task)
    scaler = ampmon.GradScaler("cpu", monitor=ampmon.Config(every=20), **policy)  # type: ignore[arg-type]
    rows = train(ALL[task], scaler, updates)
    ampmon.finish()
    with closing(Store.open(Settings(data_directory=folder / "server"))) as store:
        drain(folder / "spool", lambda _: Into(store), modes=("offline",))
        history = store.history(UUID(run_id))
    assert history.skips == sum(skipped for _, skipped in rows)
    return history


def rerun(task: str, setting: Setting, updates: int) -> int:
    """Train again under another policy, and return the number of skipped updates."""
    if setting.kind == "torch":
        scaler = torch.amp.GradScaler(
            "cpu",
            init_scale=setting.init_scale,
            growth_factor=setting.growth_factor or 2.0,
            backoff_factor=setting.backoff_factor or 0.5,
            growth_interval=setting.growth_interval or 2000,
        )
        return sum(skipped for _, skipped in train(ALL[task], scaler, updates))
    machine = setting.machine()

    def move(skipped: bool) -> float:
        if skipped:
            machine.overflow()
        else:
            machine.clean(1)
        return machine.scale

    scaler = torch.amp.GradScaler("cpu", init_scale=setting.init_scale)
    return sum(skipped for _, skipped in train(ALL[task], scaler, updates, move))


def compare(task: str, recorded: str, history: History, real: Mapping[str, int]) -> list[Row]:
    """Simulate each setting that was trained, and compare with the real skips."""
    simulator = Simulator(history)
    rows = []
    for name, skips in real.items():
        found = simulator.run(SETTINGS[name]).skips
        rows.append(
            Row(
                task,
                recorded,
                name,
                skips,
                found.low,
                round(found.expected, 1),
                found.high,
                found.known,
            )
        )
    return rows
