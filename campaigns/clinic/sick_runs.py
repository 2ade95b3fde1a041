"""Faults of runs: forgotten state, crashes, hangs, lost records, and ranks that disagree."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ampmon
from ampmon.spool import spools
from campaigns.clinic.parallel import Parallel
from campaigns.clinic.sick_numbers import NaNData
from campaigns.clinic.training import Training


HUNG = "hung"
"""A file that a hanging training leaves in its folder."""


class Saving(Training):
    """Saves a checkpoint with everything needed to resume."""

    def end(self) -> None:
        parts = {name: getattr(self, name).state_dict() for name in self.kept()}
        torch.save(parts, self.folder / "checkpoint")

    def kept(self) -> tuple[str, ...]:
        return ("model", "optimizer", "scaler")


class Resumed(Saving):
    """Resumes from the checkpoint."""

    def made(self) -> None:
        for name, state in torch.load(self.folder / "checkpoint").items():
            getattr(self, name).load_state_dict(state)


class SavingNoScaler(Saving):
    """Saves a checkpoint without the scaler's state."""

    def kept(self) -> tuple[str, ...]:
        return ("model", "optimizer")


class ResumedUnscaled(Resumed):
    """Resumes from the checkpoint, and unscales gradients made without `scale()`."""

    def backward(self, loss: Tensor) -> None:
        loss.backward()


class ResumedByStepping(Resumed):
    """Resumes as Accelerate does under FSDP2: loading the optimizer takes a step, which reaches the scaler."""

    def made(self) -> None:
        super().made()
        self.scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.step()
        self.rescale()
        self.clear()


class ResumedPoisoned(Resumed):
    """Resumes from a damaged checkpoint, with a NaN in the optimizer's state."""

    def made(self) -> None:
        super().made()
        weight = [*self.model.parameters()][2]
        self.optimizer.state[weight]["exp_avg"][0, 0] = torch.nan


class ResumedOnNaN(Resumed, NaNData):
    """Resumes from the checkpoint with batches that have missing values."""


class Killed(Training):
    """Is killed, as on a machine that runs out of memory."""

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Raising(Training):
    """Ends with an exception."""

    def end(self) -> None:
        raise RuntimeError("a data set is not where it was")


class Hanging(Training):
    """Waits forever, as in a collective that other ranks do not enter."""

    def end(self) -> None:
        Path(self.folder, HUNG).touch()
        time.sleep(3600)


class NotAveraged(Parallel):
    """Gradients are not averaged, and once the loss of one rank is ``strength`` times as large."""

    def average(self) -> None:
        pass

    def loss(self, number: int) -> Tensor:
        heavy = dist.get_rank() == 1 and number == 39
        return super().loss(number) * (self.plan.strength if heavy else 1.0)


class ShardedFused(Parallel):
    """A sharded model with a fused optimizer, so the ranks' scalers do not exchange overflows.

    Imports FSDP late: it takes a second, and the other patients do not need it.
    """

    def make_model(self) -> nn.Module:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(
            super().make_model(), use_orig_params=True, device_id=torch.device("cpu")
        )

    def make_scaler(self) -> torch.amp.GradScaler:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        plan = self.plan
        scaler = ShardedGradScaler(
            "cpu", init_scale=plan.init_scale, growth_interval=plan.growth_interval
        )
        return ampmon.watch(scaler, model=self.model, monitor=ampmon.Config(every=10))

    def average(self) -> None:
        """Do nothing: FSDP averages them."""


def lose_some(directory: Path) -> None:
    """Overwrite a tenth of the largest undelivered segment, as a bad disk does."""
    (spool,) = spools(directory)
    path = max(spool.glob("*.seg"), key=lambda path: path.stat().st_size)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size // 10))
