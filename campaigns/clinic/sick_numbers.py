"""Faults in numbers: gradients that overflow, vanish or are NaN, and scales that do not fit them."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from campaigns.clinic.models import CLASSES, SIDE
from campaigns.clinic.training import Training


WIDTH = 32


def named(**layers: nn.Module) -> nn.Sequential:
    """A perceptron whose layers have names, with ``layers`` in its middle."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Linear(SIDE**2, WIDTH),
            relu=nn.ReLU(),
            **layers,
            head=nn.Linear(WIDTH, CLASSES),
        )
    )


class _Gained(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor, gain: float) -> Tensor:
        context.gain = gain
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * context.gain, None


class Gain(nn.Module):
    """A custom autograd function: identity forward, and a factor of ``gain`` backward."""

    gain = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Gained.apply(inputs, self.gain)  # type: ignore[no-untyped-call]
        return outputs


class BackwardGain(Training):
    """Every twelfth update a custom layer returns gradients that are ``strength`` times too large."""

    def make_model(self) -> nn.Module:
        self.gain = Gain()
        return named(mine=self.gain, after=nn.Tanh())

    def forward(self, inputs: Tensor, number: int) -> Tensor:
        self.gain.gain = self.plan.strength if number % 12 == 11 else 1.0
        return super().forward(inputs, number)


class EndlessGain(BackwardGain):
    """In every update a custom layer returns gradients that are ``strength`` times too large: no scale fits."""

    def forward(self, inputs: Tensor, number: int) -> Tensor:
        self.gain.gain = self.plan.strength
        return Training.forward(self, inputs, number)


class Temperature(Gain):
    """Divides by a temperature and multiplies by it. Gradients between the two are ``gain`` times as large."""

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs / self.gain) * self.gain


class Tempered(BackwardGain):
    """Every twelfth update a layer works at a temperature of ``strength``."""

    def make_model(self) -> nn.Module:
        self.gain = Temperature()
        return named(mine=self.gain, after=nn.Tanh())


class Power(nn.Module):
    """The fourth power, which overflows in fp16 for inputs beyond +-16."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * inputs * inputs * inputs


class ForwardPower(Training):
    """Every twelfth batch is not normalised and ``strength`` times too large: an activation overflows."""

    def make_model(self) -> nn.Module:
        return named(power=Power(), squash=nn.Tanh())

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(number)
        return inputs * (self.plan.strength if number % 12 == 11 else 1.0), targets


class EnergyNorm(nn.Module):
    """RMS normalisation through squares: in fp16 they are infinite beyond 255, and inf / inf is NaN."""

    def forward(self, inputs: Tensor) -> Tensor:
        energy = inputs * inputs + 1e-3
        return inputs.sign() * (energy / energy.mean(-1, keepdim=True)).sqrt()


class ForwardNorm(ForwardPower):
    """Every twelfth batch is ``strength`` times too large for a handwritten norm, without `activations=`."""

    def make_model(self) -> nn.Module:
        return named(norm=EnergyNorm())


class Softmax(nn.Module):
    """A softmax that does not subtract the largest logit: in fp16, exp overflows beyond 11."""

    sharpness = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        exponentials = (inputs * self.sharpness).exp()
        return exponentials / exponentials.sum(-1, keepdim=True)


class ForwardSoftmax(Training):
    """Every twelfth batch the logits of a handwritten softmax are ``strength`` times as large."""

    def make_model(self) -> nn.Module:
        self.softmax = Softmax()
        norm = nn.LayerNorm(WIDTH, elementwise_affine=False)  # |logits| stay below sqrt(WIDTH)
        return named(norm=norm, softmax=self.softmax)

    def forward(self, inputs: Tensor, number: int) -> Tensor:
        self.softmax.sharpness = self.plan.strength if number % 12 == 11 else 1.0
        return super().forward(inputs, number)


class Attention(nn.Module):
    """Attention between the rows of a digit. Its logits, products of queries and keys, are not divided by anything."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(SIDE, 4) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.unflatten(1, (SIDE, SIDE))
        logits = self.query(rows) @ self.key(rows).mT
        outputs: Tensor = (logits.softmax(-1) @ self.value(rows)).flatten(1)
        return outputs


class ForwardAttention(ForwardPower):
    """Every twelfth batch is not normalised and ``strength`` times too large: the attention logits overflow."""

    def make_model(self) -> nn.Module:
        layers: dict[str, nn.Module] = {
            "attention": Attention(),
            "norm": nn.LayerNorm(4 * SIDE),
            "head": nn.Linear(4 * SIDE, CLASSES),
        }
        return nn.Sequential(OrderedDict(layers))


class Deep(nn.Module):
    """A perceptron whose last layer takes one more feature, unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIDE**2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH + 1, CLASSES)
        self.feature = 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(inputs))
        outputs: Tensor = self.head(nn.functional.pad(hidden, (0, 1), value=self.feature))
        return outputs


class WideFeature(Training):
    """Every fortieth update a feature of the last layer is ``strength``: only its weights' gradient overflows."""

    def make_model(self) -> nn.Module:
        return Deep()

    def forward(self, inputs: Tensor, number: int) -> Tensor:
        assert isinstance(self.model, Deep)
        self.model.feature = self.plan.strength if number % 40 == 39 else 0.0
        return super().forward(inputs, number)


class NaNData(Training):
    """Every ``strength``-th batch has a missing value; a single batch, if the run is no longer than ``strength``."""

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(number)
        every = int(self.plan.strength)
        at = every - 1 if every < self.plan.updates else 2 * self.plan.updates // 3
        if number % every == at:
            inputs = inputs.clone()
            inputs[0, 0] = torch.nan
        return inputs, targets


class NaNForever(Training):
    """From a third of the run on, a feature is NaN in every batch."""

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(number)
        if number >= self.plan.updates // 3:
            inputs = inputs.clone()
            inputs[:, 0] = torch.nan
        return inputs, targets


class ManualScale(Training):
    """Sets the scale to ``strength`` after every update, as for a static scale."""

    def rescale(self) -> None:
        self.scaler.update(float(self.plan.strength))


class ScaleByTurns(Training):
    """Sets the scale to ``strength`` and to four times that in turn, each for forty updates."""

    def numbers(self) -> Iterator[int]:
        for number in super().numbers():
            self.turn = number // 40 % 2
            yield number

    def rescale(self) -> None:
        self.scaler.update(float(self.plan.strength) * (1, 4)[self.turn])


class Floored(Training):
    """Never lets the scale fall below ``strength``, though gradients overflow there."""

    def rescale(self) -> None:
        super().rescale()
        if self.scaler.get_scale() < self.plan.strength:
            self.scaler.update(float(self.plan.strength))


class Held(Training):
    """Resets the scale whenever it has grown."""

    def rescale(self) -> None:
        before = self.scaler.get_scale()
        super().rescale()
        if self.scaler.get_scale() > before:
            self.scaler.update(before)


class Spikes(Training):
    """After update 100 about one batch in ``strength`` has a thousandfold loss."""

    healthy = math.inf

    def loss(self, number: int) -> Tensor:
        spike = torch.rand(()).item() < 1 / self.plan.strength and number > 100
        return super().loss(number) * (1000.0 if spike else 1.0)


class Outliers(Training):
    """Every ninetieth batch has ``strength`` times the loss, as with a damaged shard of data."""

    healthy = 1.0

    def loss(self, number: int) -> Tensor:
        return super().loss(number) * (self.plan.strength if number % 90 == 89 else 1.0)


class Burst(Training):
    """From the middle on, ``strength`` batches in a row have a millionfold loss."""

    healthy = 0.0

    def loss(self, number: int) -> Tensor:
        middle = self.plan.updates // 2
        return super().loss(number) * (1e6 if middle <= number < middle + self.plan.strength else 1)


class Adapted(nn.Module):
    """Adds the output of a small adapter, times ``weight``, to its inputs."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.adapter = nn.Sequential(
            nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
        )
        self.weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        adapted: Tensor = self.adapter(inputs)
        return inputs + adapted * self.weight


class SmallLayer(Training):
    """One small layer has ``strength`` times the gradient of the others."""

    def make_model(self) -> nn.Module:
        return named(middle=Adapted(self.plan.strength))


class PoisonedState(Training):
    """The optimizer's state gets a NaN at the ``strength``-th update, as from a damaged checkpoint."""

    def clear(self) -> None:
        super().clear()
        self.cleared = getattr(self, "cleared", 0) + 1
        if self.cleared == int(self.plan.strength):
            weight = next(itertools.islice(self.model.parameters(), 2, None))
            self.optimizer.state[weight]["exp_avg"][0, 0] = torch.nan
