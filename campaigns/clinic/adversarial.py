"""A generator and a critic with an optimizer each and one scaler, healthy or with a fault in one of them."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from campaigns.clinic.models import CLASSES, SIDE
from campaigns.clinic.sick_numbers import EnergyNorm, Gain
from campaigns.clinic.training import Training


NOISE = 8
WIDTH = 24
MADE = CLASSES
"""The critic's class for generated images, after those of the digits."""


class Pair(nn.Module):
    """A generator of images, and a critic that classifies digits and detects generated images (arXiv:1606.03498)."""

    def __init__(self, generator: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            OrderedDict(
                stem=nn.Linear(NOISE, WIDTH),
                relu=nn.ReLU(),
                middle=generator,
                head=nn.Linear(WIDTH, SIDE**2),
                grey=nn.Sigmoid(),
            )
        )
        self.critic = nn.Sequential(
            OrderedDict(
                stem=nn.Linear(SIDE**2, WIDTH),
                relu=nn.LeakyReLU(0.2),
                middle=critic,
                head=nn.Linear(WIDTH, CLASSES + 1),
            )
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.critic(inputs)[:, :CLASSES]
        return outputs


class Adversarial(Training):
    """A generator and a critic with an optimizer each, and one scaler."""

    def make_model(self) -> nn.Module:
        return Pair(nn.Identity(), nn.Identity())

    def make_optimizer(self) -> torch.optim.Optimizer:
        assert isinstance(self.model, Pair)
        self.second = self._optimizer(self.model.generator)
        return self._optimizer(self.model.critic)

    def _optimizer(self, side: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(side.parameters(), self.plan.lr, betas=(0.5, 0.999))

    def update(self, number: int) -> None:
        assert isinstance(self.model, Pair)
        real, targets = self.batch(number)
        fake = torch.full_like(targets, MADE)
        with self.autocast():
            made = self.model.generator(torch.randn(len(real), NOISE))
            judged = self.model.critic(torch.cat([real, made.detach()]))
        self.backward(cross_entropy(judged.float(), torch.cat([targets, fake])))
        self.step()
        self.clear()
        with self.autocast():
            fooled = self.model.critic(made)
        as_digits = fooled.float().log_softmax(1)[:, :MADE].logsumexp(1)
        loss = -as_digits.mean()
        self.backward(loss)
        self.scaler.step(self.second)
        self.rescale()
        self.second.zero_grad()
        self.clear()
        self.log(loss)


class SickCritic(Adversarial):
    """Every twelfth batch of digits is ``strength`` times too large for a norm in the critic."""

    def make_model(self) -> nn.Module:
        return Pair(nn.Identity(), EnergyNorm())

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(number)
        return inputs * (self.plan.strength if number % 12 == 11 else 1.0), targets


class SickGenerator(Adversarial):
    """Every twelfth update a generator layer returns gradients that are ``strength`` times too large."""

    def make_model(self) -> nn.Module:
        self.gain = Gain()
        return Pair(self.gain, nn.Identity())

    def update(self, number: int) -> None:
        self.gain.gain = self.plan.strength if number % 12 == 11 else 1.0
        super().update(number)
