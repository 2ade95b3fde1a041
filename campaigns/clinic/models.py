"""Small models of many kinds for digits of 8 x 8 grey values, and their optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


CLASSES = 10
SIDE = 8


def mlp(
    width: int = 32,
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    def layer(inputs: int) -> list[nn.Module]:
        middle = [norm(width)] if norm else []
        return [nn.Linear(inputs, width), *middle, activation()]

    return nn.Sequential(*layer(SIDE**2), *layer(width), nn.Linear(width, CLASSES))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        nn.Conv2d(1, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    )


class Recurrent(nn.Module):
    """Reads a digit row by row."""

    def __init__(self, kind: Callable[[int, int], nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(SIDE, 24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        state = None
        for row in inputs.unflatten(1, (SIDE, SIDE)).unbind(1):
            state = self.cell(row, state)
        hidden = state[0] if isinstance(state, tuple) else state
        outputs: Tensor = self.head(hidden)
        return outputs


class Transformer(nn.Module):
    """Reads the rows of a digit as tokens."""

    def __init__(self) -> None:
        super().__init__()
        width = 16
        self.embed = nn.Linear(SIDE, width)
        self.place = nn.Parameter(torch.randn(SIDE, width) * 0.1)
        self.block = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.embed(inputs.unflatten(1, (SIDE, SIDE))) + self.place
        outputs: Tensor = self.head(self.block(tokens).mean(1))
        return outputs


class Tokens(nn.Module):
    """Embeds grey values, a vocabulary of 17. ``tied`` uses the embedding's weights as the output layer."""

    def __init__(self, *, sparse: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.grey = nn.Embedding(17, 12, sparse=sparse)
        self.mix = nn.Linear(12 * 16, 12)
        self.head = nn.Linear(12, 17 if tied else CLASSES, bias=not tied)
        if tied:
            self.head.weight = self.grey.weight

    def forward(self, inputs: Tensor) -> Tensor:
        coarse = inputs.unflatten(1, (4, 2, 4, 2)).amax((2, 4)).flatten(1)
        tokens = self.grey((coarse * 16).round().long())
        outputs: Tensor = self.head(torch.tanh(self.mix(tokens.flatten(1))))
        return outputs[:, :CLASSES]


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "mlp tanh": lambda: mlp(activation=nn.Tanh),
    "mlp gelu": lambda: mlp(48, activation=nn.GELU),
    "mlp layernorm": lambda: mlp(norm=nn.LayerNorm),
    "mlp batchnorm": lambda: mlp(norm=nn.BatchNorm1d),
    "cnn": cnn,
    "gru": lambda: Recurrent(nn.GRUCell),
    "lstm": lambda: Recurrent(nn.LSTMCell),
    "transformer": Transformer,
    "embedding": Tokens,
    "sparse embedding": lambda: Tokens(sparse=True),
    "tied": lambda: Tokens(tied=True),
}

Parameters = Iterable[nn.Parameter]

OPTIMIZERS: Mapping[str, Callable[[Parameters, float], Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    "fused sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9, fused=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused adam": lambda parameters, lr: torch.optim.Adam(parameters, lr, fused=True),
    "adagrad": torch.optim.Adagrad,
}
