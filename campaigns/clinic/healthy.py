"""Healthy trainings with more than the typical loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from campaigns.clinic.sick_numbers import EnergyNorm, ForwardNorm, Outliers, named
from campaigns.clinic.training import Training


class OutliersLimited(Outliers):
    """Outlier batches, cured as their finding recommends: a limit on the loss of each batch."""

    usual: Tensor | None = None

    def loss(self, number: int) -> Tensor:
        loss = super().loss(number)
        size = loss.detach().abs()
        usual = self.usual
        usual = size if usual is None else usual
        self.usual = usual.lerp(torch.where(size <= 4 * usual, size, 1.2 * usual), 0.05)
        return loss * torch.where(size > 4 * self.usual, self.usual / size, 1.0)


class InFp32(EnergyNorm):
    """`EnergyNorm` in fp32, as its finding recommends."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(inputs.float())


class NormInFp32(ForwardNorm):
    """A norm that overflows in fp16, cured."""

    def make_model(self) -> nn.Module:
        return named(norm=InFp32())


class _Rounded(torch.autograd.Function):
    """Rounds to fp8 with a scale per tensor (arXiv:2209.05433): E4M3 forward, E5M2 backward."""

    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        return _through(inputs, torch.float8_e4m3fn)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return _through(gradients[0], torch.float8_e5m2)


def _through(values: Tensor, dtype: torch.dtype) -> Tensor:
    scale = torch.finfo(dtype).max / values.abs().max().float().clamp(min=1e-12)
    return ((values * scale).to(dtype).float() / scale).to(values.dtype)


class InFp8(Training):
    """Rounds each linear layer's inputs, and the gradients it passes back, to fp8."""

    def make_model(self) -> nn.Module:
        model = super().make_model()
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.register_forward_pre_hook(lambda _, inputs: _Rounded.apply(*inputs))
        return model


class Penalised(Training):
    """Adds a penalty on the gradient norm, as in torch's recipe."""

    def loss(self, number: int) -> Tensor:
        loss = super().loss(number)
        parameters = [*self.model.parameters()]
        scaled = torch.autograd.grad(self.scaler.scale(loss), parameters, create_graph=True)
        inverse = 1.0 / self.scaler.get_scale()
        with torch.autocast("cpu", dtype=self.dtype):
            norm = torch.stack([(each * inverse).square().sum() for each in scaled]).sum().sqrt()
        return loss + 0.01 * norm


class Calmed(Training):
    """The scale grows quickly, until `set_growth_interval(1000)` after three quarters of the updates."""

    def update(self, number: int) -> None:
        if number == 3 * self.plan.updates // 4:
            self.scaler.set_growth_interval(1000)
        super().update(number)


class ClippedByValue(Training):
    """Unscales the gradients, then clips them by value."""

    def clip(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_value_(self.model.parameters(), 0.1)


class Evaluating(Training):
    """Evaluates on all digits every fifty updates, without gradients."""

    def update(self, number: int) -> None:
        super().update(number)
        if number % 50 == 49:
            self.model.eval()
            with torch.no_grad(), torch.autocast("cpu", dtype=self.dtype):
                cross_entropy(self.model(self.images).float(), self.labels)
            self.model.train()


class Cyclic(Training):
    """The learning rate falls to a hundredth in cycles of forty updates, and restarts."""

    def made(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
            self.optimizer, 40, eta_min=self.plan.lr / 100
        )

    def rescale(self) -> None:
        super().rescale()
        self.scheduler.step()


class WarmUp(Cyclic):
    """The learning rate rises from a hundredth over the first third of the updates."""

    def made(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.LinearLR(
            self.optimizer, 0.01, total_iters=self.plan.updates // 3
        )
