"""Every kind of gradient is measured or left alone as it should be, and torch treats it as without the monitor."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer
from torch.testing._internal.two_tensor import TwoTensor

import ampmon
from older_torch import named
from recording import Recording, recording
from scaler.test_parity import bits


EXACT = ampmon.Config(every=1, sample="all")


def with_gradients(*gradients: torch.Tensor) -> list[torch.nn.Parameter]:
    """Return parameters that hold these gradients."""
    parameters = []
    for gradient in gradients:
        parameter = torch.nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        parameters.append(parameter)
    return parameters


def step(scaler: torch.amp.GradScaler, *optimizers: Optimizer) -> None:
    """Run one update with the gradients that are set."""
    scaler.scale(torch.ones(()))
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def by_name(recorded: Recording, ordinal: int) -> dict[str, int]:
    """Return how many elements of each parameter were measured."""
    statistics = recorded.statistics(ordinal)
    parameters = recorded.header().parameters
    return {
        parameters[index].name: looked
        for index, looked in zip(
            statistics.parameters.tolist(), statistics.looked.tolist(), strict=True
        )
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_floating_dtype_is_measured(data_directory: Path, dtype: torch.dtype) -> None:
    """fp32, fp64 and bf16 gradients are counted exactly, and the header names their dtype."""
    values = [0.0, 2.0**-26, -(2.0**-20), 1.0, -3.0]
    parameters = with_gradients(torch.tensor(values, dtype=dtype))
    step(ampmon.GradScaler("cpu", init_scale=1.0, monitor=EXACT), SGD(parameters, lr=0.1))
    recorded = recording(data_directory)
    classes = recorded.statistics(0).classes()
    counts = (classes.zero, classes.below_grid, classes.subnormal, classes.normal)
    assert [count.item() for count in counts] == [1, 1, 1, 2]
    assert recorded.header().parameters[0].dtype == str(dtype).removeprefix("torch.")


def test_dtypes_may_be_mixed(data_directory: Path) -> None:
    """Gradients of several dtypes in one optimizer are in one sample, each with its own elements."""
    sizes = {torch.float32: 3, torch.float64: 4, torch.bfloat16: 5}
    parameters = with_gradients(*(torch.ones(size, dtype=dtype) for dtype, size in sizes.items()))
    step(ampmon.GradScaler("cpu", init_scale=1.0, monitor=EXACT), SGD(parameters, lr=0.1))
    statistics = recording(data_directory).statistics(0)
    assert dict(zip(statistics.parameters.tolist(), statistics.looked.tolist(), strict=True)) == {
        0: 3,
        1: 4,
        2: 5,
    }


@pytest.mark.parametrize("overflows", [False, True])
def test_gradients_of_a_wrapper_class_are_left_out(
    data_directory: Path, *, overflows: bool
) -> None:
    """A gradient that wraps other tensors is neither measured nor an error, and training goes on."""
    weight = torch.nn.Parameter(TwoTensor(torch.ones(4), torch.ones(4)))
    plain = torch.nn.Parameter(torch.ones(4))
    optimizer = SGD([weight, plain], lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, monitor=EXACT)
    for update in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            factor = math.inf if overflows and update == 3 else 1.0
            for parameter in (weight, plain):
                scaler.scale(parameter.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    recorded = recording(data_directory)
    assert [len(by_name(recorded, update)) for update in range(1, 6)] == [1] * 5
    assert [update.optimizers[0].skipped for update in recorded.updates].count(True) == overflows


@pytest.mark.parametrize(
    "gradient",
    [torch.ones(3, dtype=torch.complex64), torch.ones(3, device="meta"), torch.ones(3).half()],
    ids=["complex", "meta", "fp16"],
)
def test_what_torch_refuses_it_refuses_as_ever(
    data_directory: Path, gradient: torch.Tensor
) -> None:
    """Complex, meta and fp16 gradients raise torch's own error, word for word, and no monitor error."""
    raised = []
    scalers = torch.amp.GradScaler("cpu"), ampmon.GradScaler("cpu", monitor=EXACT)
    for scaler in scalers:
        # An fp32 gradient beside them gives something to measure and to leave half done.
        parameters = with_gradients(torch.ones(5), gradient.clone())
        with pytest.raises((RuntimeError, ValueError)) as error:
            step(scaler, SGD(parameters, lr=0.1))
        raised.append((error.type, str(error.value)))
    assert raised[0] == raised[1]
    assert scalers[1].monitor is not None
    assert scalers[1].monitor.errors == 0
    assert len(recording(data_directory).events("step_raised")) == 1


def test_gradients_may_come_and_go(data_directory: Path) -> None:
    """A sample holds only the parameters that had a gradient in that iteration."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2, bias=False) for name in "ab"})
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model, monitor=EXACT)
    for used in ("a", "b", "ab"):
        optimizer.zero_grad()
        loss = sum(model[name](torch.ones(1, 2)).sum() for name in used)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    assert [set(by_name(recorded, ordinal)) for ordinal in range(3)] == [
        {"a.weight"},
        {"b.weight"},
        {"a.weight", "b.weight"},
    ]


def test_a_thawed_parameter_is_measured_from_then_on(data_directory: Path) -> None:
    """A parameter that was frozen when the run began is named and measured once it has gradients."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model, monitor=EXACT)
    for _ in range(2):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        model[0].requires_grad_(True)
    recorded = recording(data_directory)
    assert set(by_name(recorded, 0)) == {"1.weight", "1.bias"}
    assert set(by_name(recorded, 1)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_parameter_may_be_initialized_later(data_directory: Path) -> None:
    """An optimizer may hold a lazy module's parameter. It is measured once the module was used."""
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.LazyLinear(1)])
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model, monitor=EXACT)
    for used in (1, 2):
        outputs = torch.ones(1, 2)
        for module in model[:used]:
            outputs = module(outputs)
        scaler.scale(outputs.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    assert set(by_name(recorded, 0)) == {"0.weight", "0.bias"}
    assert set(by_name(recorded, 1)) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_parameters_may_join_a_group_without_a_name(data_directory: Path) -> None:
    """A parameter appended to a group that lists names is measured, under its shape."""
    model = torch.nn.Linear(2, 2)
    joined = torch.nn.Parameter(torch.ones(3))
    optimizer = SGD(named(model.named_parameters()), lr=0.1)
    optimizer.param_groups[0]["params"].append(joined)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT)
    scaler.scale(model(torch.ones(1, 2)).sum() + joined.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert set(by_name(recording(data_directory), 0)) == {"weight", "bias", "parameter 2 [3]"}


def test_a_tied_parameter_is_one_parameter(data_directory: Path) -> None:
    """An embedding tied to the output layer is measured once, under the model's first name for it."""
    model = torch.nn.ModuleDict(
        {"embedding": torch.nn.Embedding(5, 3), "head": torch.nn.Linear(3, 5, bias=False)}
    )
    model["head"].weight = model["embedding"].weight
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, model=model, monitor=EXACT)
    scaler.scale(model["head"](model["embedding"](torch.tensor([1, 2]))).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert by_name(recording(data_directory), 0) == {"embedding.weight": 15}


@pytest.mark.filterwarnings("ignore:.*duplicate parameters")
def test_a_parameter_listed_twice_is_measured_once(data_directory: Path) -> None:
    """A parameter that one optimizer lists twice, as of tied layers, has one row: a server would refuse two."""
    tied, other = with_gradients(torch.ones(4), torch.ones(2))
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT)
    step(scaler, SGD([tied, other, tied], lr=0.1))
    tied.grad = torch.full((4,), torch.inf)
    step(scaler, SGD([tied, other, tied], lr=0.1))
    recorded = recording(data_directory)
    for update in (0, 1):
        statistics = recorded.statistics(update)
        statistics.check()
        assert statistics.looked.tolist() == [4, 2]
    (skipped,) = recorded.updates[1].optimizers
    assert [culprit.parameter for culprit in skipped.culprits] == [0]


def test_a_shared_parameter_is_measured_once(data_directory: Path) -> None:
    """A parameter in two optimizers has one row, and both their steps are in the record."""
    parameters = with_gradients(torch.ones(4))
    first, second = SGD(parameters, lr=0.1), SGD(parameters, lr=0.2)
    step(ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT), first, second)
    recorded = recording(data_directory)
    assert recorded.statistics(0).looked.tolist() == [4]
    assert len(recorded.updates[0].optimizers) == 2


OPTIMIZERS: list[Callable[[Any], Optimizer]] = [
    lambda parameters: SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    lambda parameters: AdamW(parameters, lr=0.1, foreach=True),
    lambda parameters: AdamW(parameters, lr=0.1, foreach=False),
    lambda parameters: AdamW(parameters, lr=0.1, fused=True),
    lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=1),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_every_way_to_step_trains_as_ever(make: Callable[[Any], Optimizer]) -> None:
    """foreach, for-loop and fused optimizers, and LBFGS with a positional closure, end as with the stock scaler."""
    ended = []
    for scaler in (
        torch.amp.GradScaler("cpu", init_scale=64.0),
        ampmon.GradScaler("cpu", init_scale=64.0, monitor=EXACT),
    ):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = make(model.parameters())

        def closure(model: torch.nn.Module = model) -> torch.Tensor:
            return model(torch.ones(2, 4)).square().mean()

        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(closure()).backward()
            arguments = (closure,) if isinstance(optimizer, torch.optim.LBFGS) else ()
            scaler.step(optimizer, *arguments)
            scaler.update()
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        ended.append([weights, scaler.state_dict()])
    assert bits(*ended)


@pytest.mark.gpu
def test_parameters_may_lie_on_several_devices(data_directory: Path) -> None:
    """Parameters of one optimizer on a CPU and a GPU are both measured, and an overflow on either is named.

    The loss, and so the scale, is on the CPU. With both on the GPU torch has a race: it unscales on the CPU without
    waiting for the copies of inverse scale and found_inf, and a late copy hides the overflow.
    """
    parameters = with_gradients(torch.ones(3), torch.ones(5, device="cuda"))
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT)
    optimizer = SGD(parameters, lr=0.1)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    for index in range(2):
        for parameter in parameters:
            parameter.grad.fill_(1.0)
        parameters[index].grad[0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    assert sorted(recorded.statistics(0).looked.tolist()) == [3, 5]
    culprits = [
        [culprit.parameter for culprit in update.optimizers[0].culprits]
        for update in recorded.updates
    ]
    assert culprits == [[], [0], [1]]
