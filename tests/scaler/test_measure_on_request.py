"""`ampmon.measure_on_request` measures what fp16 does to gradients during training, and leaves training unchanged.

On the CPU, and on a GPU by `make gpu`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampmon
from ampmon.client import current_run
from ampmon.client.measure_on_request import EVERY_S, UPDATES, Measuring
from ampmon.errors import ConfigurationError
from ampmon.spool.layout import attempt_directory
from ampmon.spool.state import Answers
from device.place import PLACE
from recording import Recording, recording, recordings
from scaler.test_parity import bits


SCALE = 2.0**8
ALWAYS = ampmon.Config(budget=1.0)
Batch = tuple[Tensor, Tensor]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 32, bias=False), nn.Linear(32, 4)
    ).to(PLACE)


def batch(size: int = 64) -> Batch:
    torch.manual_seed(1)
    return torch.randn(size, 16).to(PLACE), torch.randn(size, 4).to(PLACE)


def loss_of(model: nn.Module, given: Batch) -> Tensor:
    """Return a loss so small that fp16 loses part of its gradients. It draws from torch's generator."""
    inputs, targets = given
    noise = torch.randn(inputs.shape).to(inputs)
    outputs = model(inputs + 0.1 * noise)
    return 3e-6 * nn.functional.mse_loss(outputs.to(targets.dtype), targets)


def train(
    scaler: torch.amp.GradScaler, model: nn.Module, given: Batch, updates: int
) -> Iterator[int]:
    """Train, and yield before each `zero_grad()`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for update in range(updates):
        with torch.autocast(PLACE, dtype=torch.float16):
            loss = loss_of(model, given)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield update
        optimizer.zero_grad()


def ask(directory: Path, request: int) -> None:
    """Leave a request in the spool, as the sender does, and let the run see it."""
    run = current_run.current()
    assert run is not None
    path = attempt_directory(directory, run.attempt_id)
    Answers(path).ask(request)
    run.findings.look(path)


def measured(directory: Path) -> list[dict[str, Any]]:
    return [event.detail for event in recording(directory).events("measured")]


def errors_of(model: nn.Module, given: Batch, random: Tensor) -> dict[str, float]:
    """Return the relative errors of fp16 gradients at `SCALE` against fp64, by module."""
    half, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    torch.set_rng_state(random)
    with torch.autocast(PLACE, dtype=torch.float16):
        loss = loss_of(half, given)
    half.zero_grad()
    (loss * SCALE).backward()
    torch.set_rng_state(random)
    exact.zero_grad()
    loss_of(exact, (given[0].double(), given[1].double())).backward()
    errors = {}
    for name, weight in exact.named_parameters():
        ours, theirs = half.get_parameter(name).grad, weight.grad
        if name.endswith("weight") and ours is not None and theirs is not None:
            wrong = (ours.double() / SCALE - theirs).norm() / theirs.norm()
            errors[name.removesuffix(".weight")] = float(wrong)
    return errors


def test_the_error_is_that_beside_fp64_and_training_does_not_notice(data_directory: Path) -> None:
    """A request records each module's error against fp64, and training ends bit for bit as with the stock scaler."""
    given, left = batch(), []
    seen: list[tuple[nn.Module, Tensor]] = []

    def loss_fn(model: nn.Module, given: Batch) -> Tensor:
        seen.append((copy.deepcopy(model), torch.get_rng_state()))
        return loss_of(model, given)

    for scaler in (
        torch.amp.GradScaler(PLACE, init_scale=SCALE),
        ampmon.GradScaler(PLACE, init_scale=SCALE, monitor=ALWAYS),
    ):
        model = network()
        ampmon.measure_on_request(scaler, model, given, loss_fn)
        for update in train(scaler, model, given, 200):
            if update == 40 and scaler.__class__ is ampmon.GradScaler:
                ask(data_directory, request=1)
        gradients = [each.grad for each in model.parameters()]
        left.append((model.state_dict(), gradients, scaler.state_dict(), torch.get_rng_state()))

    (detail,) = measured(data_directory)
    assert bits(*left)
    assert len(seen) == 2
    expected = errors_of(seen[0][0], given, seen[0][1])
    assert detail["modules"] == pytest.approx(expected, rel=1e-3)
    assert max(expected.values()) > 0.01
    assert list(detail["modules"].values()) == sorted(detail["modules"].values(), reverse=True)
    assert 0 < detail["error"] <= max(expected.values())
    assert detail["scale"] == SCALE


def test_a_graph_from_before_the_measurement_can_be_passed_backward(data_directory: Path) -> None:
    """A measurement between a discriminator's and a generator's step leaves the generator's graph valid."""
    generator, (noise, _) = network(), batch()
    critic = nn.Linear(4, 1).to(PLACE)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (generator, critic)]
    scaler = ampmon.GradScaler(PLACE, init_scale=SCALE, monitor=ALWAYS)
    ampmon.measure_on_request(scaler, generator, batch(), loss_of)
    for update in range(40):
        fake = generator(noise)
        for optimizer, outputs in zip(optimizers[::-1], (fake.detach(), fake), strict=True):
            if update == 30:
                ask(data_directory, request=1)
            scaler.scale(critic(outputs).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert len(measured(data_directory)) == 1


def test_what_cannot_be_measured_is_reported_and_harms_nothing(data_directory: Path) -> None:
    """An error of the loss, an overflow in fp16 and NaN in fp32 are recorded in the event, and training goes on."""
    scaler = ampmon.GradScaler(PLACE, init_scale=SCALE, growth_interval=2, monitor=ALWAYS)
    model, given = network(), batch()
    factors = iter([ZeroDivisionError("no batch"), 1e12, float("nan")])

    def loss_fn(model: nn.Module, factor: list[Any]) -> Tensor:
        if isinstance(factor[0], Exception):
            raise factor[0]
        return loss_of(model, given) * factor[0]

    factor: list[Any] = [None]
    for update in train(scaler, model, given, 96):
        if update % 32 == 1:
            factor[0] = next(factors)
            ampmon.measure_on_request(scaler, model, factor, loss_fn)
        if update % 32 == 16:
            ask(data_directory, request=update)

    words = [detail["failed"] for detail in measured(data_directory)]
    assert words == [
        "ZeroDivisionError: no batch",
        "fp16 overflowed on the batch.",
        "The gradient is not finite in fp32 either.",
    ]
    assert scaler.monitor is not None
    assert (scaler.monitor.updates, scaler.monitor.errors) == (96, 0)


def test_it_rests_an_hour_and_keeps_within_the_budget(data_directory: Path) -> None:
    """A request waits for an hour since the last one, for room in the budget, and for the end of an autocast."""
    scaler = ampmon.GradScaler(PLACE, growth_interval=2, monitor=ampmon.Config(budget=0.02))
    model, given, now = network(), batch(8), [0.0]
    assert scaler.monitor is not None
    measuring = Measuring(scaler.monitor, model, given, loss_of, clock=lambda: now[0])
    scaler.monitor.measuring = measuring
    made = []
    training = train(scaler, model, given, 10)
    for update in itertools.islice(training, 8):
        if update == 0:
            ask(data_directory, request=1)
        made.append(measuring._served)
        # Time that passes before an update: none, enough for the first, none, and the hour in two parts.
        now[0] += (0.0, UPDATES * 60.0 / 0.02, 0.0, EVERY_S - 1, 1.0)[min(update, 4)]
        if update == 2:
            ask(data_directory, request=2)

    assert made == [None, None, 1, 1, 1, 2, 2, 2]
    now[0] += EVERY_S
    ask(data_directory, request=3)
    with torch.autocast(PLACE, dtype=torch.float16):
        next(training)
    assert measuring._served == 2
    next(training)
    assert len(measured(data_directory)) == 3


def test_each_run_records_that_it_can_be_measured(data_directory: Path) -> None:
    """The event is in the run that the script began with, and in the one that a second `init` starts."""
    scaler, model, given = ampmon.GradScaler(PLACE), network(), batch(8)
    ampmon.measure_on_request(scaler, model, given, loss_of)
    ampmon.init("tests", "another")
    assert list(train(scaler, model, given, 2)) == [0, 1]
    recorded = recordings(data_directory)
    assert [len(each.events("measurable")) for each in recorded] == [1, 1]


def test_where_nothing_can_be_measured_nothing_is_said(data_directory: Path) -> None:
    """An unwatched scaler is ignored, several ranks get a warning, and bad arguments raise a ConfigurationError."""
    ampmon.measure_on_request(torch.amp.GradScaler(PLACE), network(), batch(), loss_of)
    scaler = ampmon.GradScaler(PLACE)
    with pytest.raises(ConfigurationError, match="call model"):
        ampmon.measure_on_request(scaler, network().half(), batch(), loss_of)
    with pytest.raises(ConfigurationError, match="loss_fn: a function"):
        ampmon.measure_on_request(scaler, network(), batch(), None)  # type: ignore[arg-type]
    run = current_run.current()
    assert run is not None
    run.world_size = 2
    with pytest.warns(ampmon.AmpmonWarning, match="several ranks"):
        ampmon.measure_on_request(scaler, network(), batch(), loss_of)

    recorded: Recording = recording(data_directory)
    assert recorded.events("measurable") == []
