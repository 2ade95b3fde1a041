"""Trains a patient in processes of its own, and delivers its records to a real server."""

from __future__ import annotations

import importlib
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ampmon import identity
from ampmon.transport import HttpTransport
from campaigns.clinic.patient import Patient
from campaigns.soak.nursery import fork, killed
from draining import drain
from scripts import Script
from serving import free_port
from threaded_server import ThreadedServer


Way: TypeAlias = Literal["sick", "cured", "twin"]
LOSS = "loss"
"""A file that a finished training leaves in its folder, with its final loss."""
LIMIT_S = 120.0
"""Timeout of a training."""
SEEDS_APART = 10_000
_POLL_S = 0.01


def warm() -> None:
    """Load everything that a training's first update needs, which takes seconds."""
    import torch

    torch.set_num_threads(1)
    importlib.import_module("campaigns.clinic.drawn")
    importlib.import_module("ampmon.client.scaler")
    from campaigns.clinic.training import digits

    digits()
    layer = torch.nn.Linear(8, 8)
    optimizer, scaler = torch.optim.Adam(layer.parameters()), torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", dtype=torch.float16):
        loss = layer(torch.ones(4, 8)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def train(
    name: str, attempt: int, folder: str, way: Way, fix: str, skipped: list[int], further: int
) -> None:
    """Run one attempt of the patient in its folder, in a child process. Ends as the patient does."""
    from campaigns.clinic.cure import cured, twin
    from campaigns.clinic.drawn import find

    patient = find(name)
    kind, plan = patient.attempts[attempt], patient.plan
    plan = replace(plan, seed=plan.seed + further * SEEDS_APART)
    if way == "cured":
        kind = cured(kind, fix)
    elif way == "twin":
        kind, plan = twin(kind, plan)
    training = kind(plan, Path(folder))
    training.train(skipped)
    if way != "sick":
        Path(folder, LOSS).write_text(str(training.final_loss()))
    training.end()


@dataclass(frozen=True, slots=True)
class Trained:
    """A patient's run, its training time, and its final loss, or NaN without one."""

    run_id: str
    seconds: float
    loss: float


class Ward:
    """Trains any number of patients at a time, each in its own folder under ``folder``."""

    def __init__(self, server: ThreadedServer, folder: Path) -> None:
        self._server, self._folder = server, folder

    def treat(
        self,
        patient: Patient,
        way: Way = "sick",
        fix: str = "",
        skipped: Sequence[int] = (),
        further: int = 0,
    ) -> Trained:
        """Train a patient and deliver its records; a twin leaves out ``skipped`` updates. ``further`` numbers the seed.

        Raises RuntimeError if a training does not end, or the server does not take all records.
        """
        name = " ".join(
            (patient.name, *([way] if way != "sick" else []), *([str(further)] if further else []))
        )
        folder = self._folder / "".join(c if c.isalnum() else "-" for c in name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        began, run_id = time.monotonic(), identity.uuid7()
        order = {
            "name": patient.name,
            "way": way,
            "fix": fix,
            "skipped": [*skipped],
            "further": further,
        }
        children: list[Script] = []
        try:
            for attempt in range(len(patient.attempts)):
                children = self._begin(patient.ranks, folder, str(run_id), attempt=attempt, **order)
                self._wait(patient, children, folder)
            seconds = time.monotonic() - began
            self._deliver(patient, folder)
        finally:
            for child in children:
                killed(child)
        loss = folder / LOSS
        ended = float(loss.read_text()) if loss.exists() else math.nan
        return Trained(str(run_id), round(seconds, 2), ended)

    def _begin(self, ranks: int, folder: Path, run_id: str, **order: Any) -> list[Script]:
        port = str(free_port()) if ranks > 1 else ""
        return [
            fork(
                "campaigns.clinic.ward:train",
                folder / "log",
                {
                    "AMPMON_DIR": str(folder),
                    "AMPMON_MODE": "offline",
                    "AMPMON_RUN_ID": run_id,
                    **(_launched(rank, ranks, port) if port else {}),
                },
                folder=str(folder),
                **order,
            )
            for rank in range(ranks)
        ]

    @staticmethod
    def _wait(patient: Patient, children: list[Script], folder: Path) -> None:
        end = time.monotonic() + LIMIT_S
        while any(child.poll() is None for child in children):
            if patient.ends == "hung" and (folder / "hung").exists():
                return
            if time.monotonic() > end:
                raise RuntimeError(f"{patient.name}: still training after {LIMIT_S:.0f} s")
            time.sleep(_POLL_S)

    def _deliver(self, patient: Patient, folder: Path) -> None:
        if patient.spoil:
            patient.spoil(folder)
        url, token = self._server.url, self._server.token_file
        report = drain(folder, lambda _: HttpTransport(url, token_file=token), modes=("offline",))
        if report.problems or report.rejected or not report.sent:
            raise RuntimeError(f"{patient.name}: {report}; {(folder / 'log').read_text()[-4000:]}")


def _launched(rank: int, ranks: int, port: str) -> Mapping[str, str]:
    """The environment that torchrun gives a process."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
