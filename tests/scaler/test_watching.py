"""After a loss that was not finite, modules are watched for the first non-finite output on finite input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import ampmon
from ampmon.activations import hooks
from recording import Recording, recording
from scaler.test_parity import bits


HUGE = 4000.0
"""Its square is infinite in fp16."""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pause of a busy machine use up the time that watching may take."""
    monkeypatch.setattr(hooks, "FREE_NS", 10**15)


class Norm(nn.Module):
    """Divides squares by their mean: inf / inf beyond fp16's range."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        energy = inputs * inputs + 1e-3
        return inputs.sign() * (energy / energy.mean(-1, keepdim=True)).sqrt()


class Parent(nn.Module):
    """Does what the norm does in its own code, then calls a child."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(16, 16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.child(Norm.forward(self, inputs))  # type: ignore[arg-type]
        return outputs


class InPlace(nn.Module):
    """Multiplies its input by 100 in place."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mul_(100)


class Masked(nn.Module):
    """Attention with a mask of -inf, followed by the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm = Attend(), Norm()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mask = torch.full((len(inputs), len(inputs)), -math.inf).triu(1)
        outputs: torch.Tensor = self.norm(self.attend(inputs, mask=mask))
        return outputs


class Attend(nn.Module):
    def forward(self, inputs: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return ((inputs * 1e-4) @ (inputs * 1e-4).T + mask).softmax(-1).to(inputs.dtype) @ inputs


def network(middle: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), middle(), nn.Dropout(0.1), nn.Linear(16, 4))


Inputs = Callable[[int], torch.Tensor]


def ordinary(_: int) -> torch.Tensor:
    return torch.randn(16, 8)


def huge(number: int) -> torch.Tensor:
    return torch.randn(16, 8) * (HUGE if number % 4 == 3 else 1.0)


def train(
    model: nn.Module,
    scaler: torch.amp.GradScaler,
    inputs: Inputs = huge,
    *,
    updates: int = 12,
    factor: Callable[[int], float] = lambda _: 1.0,
) -> dict[str, Any]:
    """Train, and return what the updates leave behind."""
    torch.manual_seed(1)
    optimizer = SGD(model.parameters(), lr=0.01)
    for number in range(updates):
        with torch.autocast("cpu", dtype=torch.float16):
            outputs = model(inputs(number))
        loss = cross_entropy(outputs.float(), torch.randint(4, (len(outputs),)))
        scaler.scale(loss * factor(number)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return {
        "model": model.state_dict(),
        "scaler": scaler.state_dict(),
        "random": torch.get_rng_state(),
    }


def origins(recorded: Recording) -> list[tuple[str | None, str | None]]:
    """Return where the losses of the skipped updates stopped being finite, and in which module."""
    modules = [module.name for module in recorded.header().modules]
    return [
        (each.origin, None if each.origin_module is None else modules[each.origin_module])
        for each in recorded.updates
        if each.optimizers[0].skipped
    ]


def hooked(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if module._forward_hooks}


def watched(model: nn.Module, **options: Any) -> torch.amp.GradScaler:
    return ampmon.GradScaler("cpu", init_scale=2.0**10, model=model, **options)


@pytest.mark.parametrize("options", [{}, {"activations": 1}])
@pytest.mark.parametrize(
    ("middle", "name"),
    [(Norm, "1"), (Parent, "1"), (InPlace, "1"), (Masked, "1.norm")],
)
def test_the_first_module_is_named(
    data_directory: Path, middle: type[nn.Module], name: str, options: dict[str, int]
) -> None:
    """The first non-finite module is named from the second such loss on, or from the first with activations."""
    model = network(middle)
    train(model, watched(model, monitor=ampmon.Config(**options)))
    recorded = recording(data_directory)
    assert origins(recorded)[1:] == [("forward", name)] * 2
    assert origins(recorded)[0] == (("forward", name) if options else (None, None))
    assert all(each.loss == "not_finite" for each in recorded.updates if each.origin)


def test_the_input_and_the_loss_are_no_module(data_directory: Path) -> None:
    """NaN in the model's input, and a loss that alone is not finite, are recorded as such without a module."""

    def spoiled(number: int) -> torch.Tensor:
        inputs = torch.randn(16, 8)
        inputs[0, 0] = math.nan if number in (3, 5) else 0.0
        return inputs

    model = network(nn.ReLU)
    train(model, watched(model), spoiled, factor=lambda number: math.inf if number == 7 else 1.0)
    assert origins(recording(data_directory)) == [(None, None), ("input", None), ("loss", None)]


def test_an_overflow_of_the_scale_is_not_watched_for(data_directory: Path) -> None:
    """Skips with a finite loss hook no module and name none."""
    model = network(nn.ReLU)
    seen: list[set[str]] = []

    def inputs(_: int) -> torch.Tensor:
        seen.append(hooked(model))
        return torch.randn(16, 8)

    scaler = ampmon.GradScaler("cpu", init_scale=2.0**24, model=model)
    train(model, scaler, inputs)
    recorded = recording(data_directory)
    assert sum(each.optimizers[0].skipped for each in recorded.updates) > 2
    assert {each.loss for each in recorded.updates} == {None, "finite"}
    assert set(origins(recorded)) == {(None, None)}
    assert not any(seen)
    assert recorded.header().modules == ()


def test_watching_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are unhooked after some updates without such a loss, or after enough of them, and hooked after a rest."""
    monkeypatch.setattr(hooks, "WATCHED", 8)
    monkeypatch.setattr(hooks, "ENOUGH", 2)
    monkeypatch.setattr(hooks, "REST", 16)
    model = network(Norm)
    scaler = watched(model)
    monitor = scaler.monitor
    assert monitor is not None
    train(model, scaler, huge, updates=4)
    assert hooked(model) == {"", "0", "1", "2", "3"}
    assert monitor.gear is None
    train(model, scaler, ordinary, updates=9)
    assert hooked(model) == set()
    train(model, scaler, ordinary, updates=20)
    assert monitor.gear is not None
    train(model, scaler, huge, updates=8)
    assert hooked(model)
    train(model, scaler, huge, updates=4)
    assert hooked(model) == set()
    train(model, scaler, huge, updates=16)
    assert hooked(model)


def test_watching_keeps_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its free time, watching ends once it exceeds its share of the training's time."""
    monkeypatch.setattr(hooks, "FREE_NS", 0)
    model = network(Norm)
    scaler = watched(model, monitor=ampmon.Config(budget=1e-9))
    train(model, scaler, huge, updates=4)
    before = hooked(model)
    train(model, scaler, ordinary, updates=1)
    assert (bool(before), hooked(model)) == (True, set())


@pytest.mark.parametrize("middle", [Norm, Parent, InPlace, Masked])
def test_a_watched_training_is_as_before(middle: type[nn.Module]) -> None:
    """Weights, scale and random numbers of a watched training are bit for bit the stock scaler's."""
    first, second = network(middle), network(middle)
    stock = train(first, torch.amp.GradScaler("cpu", init_scale=2.0**10))
    scaler = watched(second)
    ours = train(second, scaler)
    assert bits(stock, ours)
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0


def test_an_evaluation_takes_the_path_it_took() -> None:
    """torch's encoder layer, which leaves its fused path if hooked, is not hooked and evaluates to the same bits."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Linear(8, 16), layer, nn.Linear(16, 4))
    inputs = torch.randn(16, 3, 8)

    def evaluated() -> torch.Tensor:
        with torch.inference_mode():
            outputs: torch.Tensor = model.eval()(inputs)
        model.train()
        return outputs

    before = evaluated()
    scaler = watched(model)
    scaler.scale(model(inputs).sum() * math.nan).backward()
    scaler.step(SGD(model.parameters(), lr=0.0))
    scaler.update()
    assert hooked(model) == {"", "0", "2"}
    assert bits(before, evaluated())
