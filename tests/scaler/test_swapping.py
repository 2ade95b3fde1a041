"""Modules whose tensors torch swaps, which it does only if no weak reference to them exists, are still monitored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.optim import SGD
from torch.testing._internal.two_tensor import TwoTensor

import ampmon
from recording import recording
from scaler.test_ledger import iterate


@pytest.fixture
def swapping() -> Iterator[None]:
    """Convert and load modules by swapping: torch's own switch."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("swapping")
def test_a_users_hook_after_it_fires() -> None:
    """After a conversion by swapping, hooks that a user sets on the parameters fire."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0)
    for _ in range(10):
        iterate(scaler, model, optimizer)
    model.double().float()
    fired: list[torch.Tensor] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(fired.append)
    iterate(scaler, model, optimizer)
    assert len(fired) == 2


class Returned(torch.nn.Module):
    """A module that returns its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self) -> torch.Tensor:
        return self.weight


@pytest.mark.usefixtures("swapping")
def test_a_parameter_that_a_module_puts_out_is_converted(data_directory: Path) -> None:
    """With activations measured, a model that returns its parameter and was only called before is converted."""
    model = Returned()
    scaler = ampmon.GradScaler(
        "cpu", init_scale=2.0, model=model, monitor=ampmon.Config(activations=1)
    )
    model()
    model.double()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler.scale((model() * 1.0).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert recording(data_directory).activations(0).names == ["Returned"]


@pytest.mark.usefixtures("swapping")
@pytest.mark.parametrize("updates", [0, 1, 12])
def test_a_module_is_converted_and_loads(data_directory: Path, updates: int) -> None:
    """With torch's switch on, `to` and `load_state_dict` work, and parameters keep their places in the record."""
    model = torch.nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler(
        "cpu", init_scale=2.0, model=model, monitor=ampmon.Config(every=1, activations=1)
    )
    for _ in range(updates):
        iterate(scaler, model, optimizer)
    model.double()
    model.load_state_dict(
        {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    )
    model.float()
    for _ in range(2):
        iterate(scaler, model, optimizer)
    recorded = recording(data_directory)
    assert [parameter.name for parameter in recorded.header().parameters] == ["weight", "bias"]
    assert recorded.statistics(updates + 1).parameters.tolist() == [0, 1]
    assert recorded.events("error") == []


def test_a_module_of_wrapped_tensors_is_converted(data_directory: Path) -> None:
    """Tensor subclasses that hold tensors, as in FSDP and quantization, are swapped without any switch."""
    model = torch.nn.Linear(4, 4)
    for name, parameter in list(model.named_parameters()):
        setattr(model, name, torch.nn.Parameter(TwoTensor(parameter.detach(), parameter.detach())))
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model, monitor=ampmon.Config(ranks=[1]))
    optimizer = SGD(model.parameters(), lr=0.1)
    model.double().float()
    for _ in range(2):
        iterate(scaler, model, optimizer)
        model.double().float()
    assert [parameter.name for parameter in recording(data_directory).header().parameters] == [
        "weight",
        "bias",
    ]
    assert recording(data_directory).events("error") == []
