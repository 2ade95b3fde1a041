"""Trainings on two ranks, healthy or with faulty batches."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ampmon
from campaigns.clinic.sick_numbers import ForwardNorm, NaNData
from campaigns.clinic.training import Training, digits


class Parallel(Training):
    """Several ranks, each with a copy of the model and a share of the digits; gradients are averaged by hand."""

    def begin(self) -> None:
        dist.init_process_group("gloo")
        super().begin()

    def made(self) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(self.plan.seed + 1 + rank)
        self.images, self.labels = self.images[rank::ranks], self.labels[rank::ranks]

    def passes(self, number: int) -> Tensor:
        loss = super().passes(number)
        self.average()
        return loss

    def average(self) -> None:
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def final_loss(self) -> float:
        self.images, self.labels = digits()  # all digits, so that every rank has the same loss
        return super().final_loss()

    def end(self) -> None:
        dist.destroy_process_group()


class Distributed(Parallel):
    """Ranks under `DistributedDataParallel`, which averages gradients during the backward pass."""

    def make_model(self) -> nn.Module:
        return DistributedDataParallel(super().make_model())

    def average(self) -> None:
        """Do nothing: `DistributedDataParallel` has averaged them."""

    def end(self) -> None:
        """Exit without Python's shutdown, in which torch's reducer and gloo's threads may deadlock."""
        ampmon.finish()
        dist.barrier()
        os._exit(0)


class NaNOnOneRank(Distributed, NaNData):
    """The second rank's batches have missing values, which reach both ranks' gradients."""

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        if dist.get_rank() == 1:
            return super().batch(number)
        return Training.batch(self, number)


class NormOnRanks(Distributed, ForwardNorm):
    """On both ranks every twelfth batch is ``strength`` times too large for a handwritten norm."""
