"""Each wrong order of a loop's calls gets a lint or torch's error, or trains bit for bit as a right order."""

from __future__ import annotations

import functools
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import ampmon
from ampmon.lints.passes import _memory
from recording import recordings


pytestmark = pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")

UPDATES = 16
Order = tuple[str, ...]
RIGHT: dict[str, Order] = {
    name: tuple(calls.split())
    for name, calls in {
        "plain": "zero_grad forward scale backward step update",
        "clipping": "zero_grad forward scale backward unscale_ clip step update",
        "clearing to zero": "zero_grad_to_0 forward scale backward unscale_ clip step update",
        "accumulation": "zero_grad forward scale backward forward scale backward unscale_ step update",
        "accumulation with clipping": "zero_grad forward scale backward forward scale backward unscale_ clip step "
        "update",
        "two optimizers": "zero_grad forward scale backward unscale_ step zero_grad:other forward:other scale backward "
        "unscale_:other step:other update",
    }.items()
}
CLIPPED_TWICE = "clip clip"
"""The only wrong order without a report. It is harmless: the second clipping changes no more than rounding does."""


def wrong(order: Order) -> Iterator[Order]:
    """Yield the order with each call left out, doubled, moved, or given to the other optimizer."""
    for at, call in enumerate(order):
        if call.startswith("forward"):
            continue
        without = order[:at] + order[at + 1 :]
        yield without
        yield (*order[: at + 1], *order[at:])
        for to in range(len(order)):
            if to != at:
                yield (*without[:to], call, *without[to:])
        if call.startswith(("zero_grad", "unscale_", "step")):
            swapped = call.removesuffix(":other") if ":" in call else f"{call}:other"
            yield (*order[:at], swapped, *order[at + 1 :])
        if call == "step":
            yield (*order[:at], "step_past", *order[at + 1 :])
            yield (*order[:at], "step", "step_past", *order[at + 1 :])


class Training:
    """Two small regressions in fp16 autocast, and the calls of a loop by name."""

    def __init__(self, kind: Any) -> None:
        torch.manual_seed(0)
        self.models = {
            each: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
            for each in ("", "other")
        }
        self.optimizers = {
            each: SGD(model.parameters(), lr=0.01, momentum=0.9)
            for each, model in self.models.items()
        }
        self.scaler = kind("cpu", init_scale=1024.0)
        self.loss = torch.zeros((), requires_grad=True).neg()
        self.data = torch.Generator().manual_seed(1)

    def call(self, name: str) -> None:
        name, _, which = name.partition(":")
        optimizer = self.optimizers[which]
        if name == "forward":
            self.loss = self.forward(self.models[which])
        elif name == "scale":
            self.loss = self.scaler.scale(self.loss)
        else:
            calls: dict[str, Callable[[], object]] = {
                "backward": lambda: self.loss.backward(retain_graph=True),
                "clip": lambda: nn.utils.clip_grad_norm_(self.models[which].parameters(), 0.1),
                "update": self.scaler.update,
                "zero_grad": optimizer.zero_grad,
                "zero_grad_to_0": lambda: optimizer.zero_grad(set_to_none=False),
                "step_past": optimizer.step,
                "step": lambda: self.scaler.step(optimizer),
                "unscale_": lambda: self.scaler.unscale_(optimizer),
            }
            calls[name]()

    def forward(self, model: nn.Module) -> torch.Tensor:
        inputs = torch.randn(16, 8, generator=self.data)
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
        loss: torch.Tensor = (outputs.float() - inputs.sum(1, keepdim=True)).square().mean()
        return loss

    def train(self, order: Order) -> tuple[bytes, ...]:
        """Return the bytes of the weights after the updates."""
        for _ in range(UPDATES):
            for name in order:
                self.call(name)
        weights = [each for model in self.models.values() for each in model.parameters()]
        return tuple(each.detach().numpy().tobytes() for each in weights)


@functools.cache
def right_weights() -> dict[tuple[bytes, ...], str]:
    """Return the names of the right orders by the weights that they make."""
    return {Training(torch.amp.GradScaler).train(order): name for name, order in RIGHT.items()}


def lints_by_scaler(directory: Path) -> dict[str, set[str]]:
    """Return the lints of each scaler by its name."""
    rules: dict[str, set[str]] = defaultdict(set)
    for each in recordings(directory):
        for event in each.events("lint"):
            rules[event.stream].add(str(event.detail["rule"]))
    return rules


@pytest.mark.parametrize("loop", RIGHT)
def test_each_wrong_order_gets_a_lint_or_is_harmless(data_directory: Path, loop: str) -> None:
    """A wrong order gets a lint or torch's exception, or makes bit for bit the weights of a right order.

    Every fifth wrong order of each loop is tried; `make test-campaigns` tries all.
    """
    check_wrong_orders(data_directory, loop, 5)


def check_wrong_orders(data_directory: Path, loop: str, every: int) -> None:
    silent = {}
    for number, order in enumerate([*dict.fromkeys(wrong(RIGHT[loop]))][::every]):
        training = Training(functools.partial(ampmon.GradScaler, name=f"order {number}"))
        try:
            if training.train(order) not in right_weights():
                silent[f"order {number}"] = " ".join(order)
        except (AssertionError, RuntimeError):
            continue
    lints = lints_by_scaler(data_directory)
    unnoticed = [order for name, order in silent.items() if not lints[name]]
    assert [order for order in unnoticed if CLIPPED_TWICE not in order] == []


def test_no_right_order_gets_a_lint(data_directory: Path) -> None:
    """Plain, clipped, accumulated and cleared loops, with one optimizer or two, get no lint."""
    for name, order in RIGHT.items():
        Training(functools.partial(ampmon.GradScaler, name=name)).train(order)
    assert lints_by_scaler(data_directory) == {}


def small(scale: float = 64.0, **options: Any) -> tuple[nn.Module, SGD, Any]:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    return model, optimizer, ampmon.GradScaler("cpu", init_scale=scale, **options)


def finish(scaler: Any, *optimizers: SGD) -> None:
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def test_a_gradient_penalty_is_right(data_directory: Path) -> None:
    """A gradient penalty, made of the unscaled gradients of a scaled loss, gets no lint."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 4)).square().mean()
        scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        penalty = sum((each / scaler.get_scale()).square().sum() for each in scaled)
        scaler.scale(loss + 0.1 * penalty).backward()
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize(("scalers", "passes"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("to_none", [True, False])
def test_an_adversary_that_reaches_the_other_model_is_right(
    data_directory: Path, scalers: int, passes: int, to_none: bool
) -> None:
    """A GAN, whose losses leave gradients in the other model that are cleared before its own loss, gets no lint.

    It may add up the gradients of several passes.
    """
    first, first_optimizer, first_scaler = small(name="first")
    second = nn.Linear(1, 4)
    second_optimizer = SGD(second.parameters(), lr=0.01)
    second_scaler = (
        ampmon.GradScaler("cpu", init_scale=32.0, name="second") if scalers == 2 else first_scaler
    )
    for _ in range(UPDATES):
        first_optimizer.zero_grad(set_to_none=to_none)
        for _ in range(passes):
            first_scaler.scale(first(second(torch.randn(16, 1))).square().mean()).backward()
        first_scaler.step(first_optimizer)
        second_optimizer.zero_grad(set_to_none=to_none)
        for _ in range(passes):
            second_scaler.scale(first(second(torch.randn(16, 1))).cos().mean()).backward()
        second_scaler.step(second_optimizer)
        for scaler in {id(each): each for each in (first_scaler, second_scaler)}.values():
            scaler.update()
    assert lints_by_scaler(data_directory) == {}


def test_an_adversary_without_a_scaler_is_right(data_directory: Path) -> None:
    """An unscaled loss may reach a scaler's parameters without a lint if its gradients are cleared afterwards."""
    model, optimizer, scaler = small()
    for to_none in (True, False) * 6:
        model(torch.randn(16, 4)).mean().backward()
        optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(model(torch.randn(16, 4)).square().mean()).backward()
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


def test_a_penalty_after_unscaling_is_right(data_directory: Path) -> None:
    """An unscaled penalty on top of unscaled gradients gets no lint."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(16, 4)).square().mean()).backward()
        scaler.unscale_(optimizer)
        sum(each.square().sum() for each in model.parameters()).backward()
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


def test_recomputed_activations_are_right(data_directory: Path) -> None:
    """Reentrant checkpoints that reach a shared parameter several times in one backward pass get no lint."""
    model, optimizer, scaler = small()
    shared = nn.Linear(4, 4)
    optimizer.add_param_group({"params": list(shared.parameters())})
    for _ in range(UPDATES):
        optimizer.zero_grad()
        hidden = torch.randn(16, 4, requires_grad=True)
        for _ in range(3):
            hidden = checkpoint(shared, hidden, use_reentrant=True)
        scaler.scale(checkpoint(model, hidden, use_reentrant=True).square().mean()).backward()
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


def test_several_losses_are_right(data_directory: Path) -> None:
    """Losses that are scaled one by one or as a list, and passed backward together, get no lint."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        optimizer.zero_grad()
        outputs = model(torch.randn(16, 4))
        one, other, third, fourth = (outputs.pow(power).mean() for power in (1, 2, 3, 4))
        torch.autograd.backward(scaler.scale([one, other]), retain_graph=True)
        (scaler.scale(third) + scaler.scale(fourth)).backward()
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("after", [False, True])
def test_gradients_gathered_task_by_task_are_right(data_directory: Path, after: bool) -> None:
    """Gradients that are taken out and cleared task by task, and put back as a sum, get no lint.

    If they are cleared ``after`` each task, the sum may get the address of a cleared gradient.
    """
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        taken = []
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(16, 4)).square().mean()).backward()
            taken.append([each.grad.clone() for each in model.parameters()])
            if after:
                optimizer.zero_grad()
        for parameter, one, other in zip(model.parameters(), *taken, strict=True):
            parameter.grad = one + other
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


def test_gradients_of_tasks_that_the_loop_combines_are_right(data_directory: Path) -> None:
    """Gradients that are read and cleared task by task, and written over the last ones, get no lint."""
    model, optimizer, scaler = small()
    heads = nn.Linear(1, 1), nn.Linear(1, 1)
    for _ in range(UPDATES):
        inputs, read = torch.randn(16, 4), []
        for head in heads:
            optimizer.zero_grad()
            scaler.scale(head(model(inputs)).square().mean()).backward()
            read.append([each.grad.clone() for each in model.parameters()])
        for parameter, one, other in zip(model.parameters(), *read, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(one + other)
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


def test_gradients_of_examples_that_the_loop_combines_are_right(data_directory: Path) -> None:
    """Gradients that are read and cleared for each example, and written back in place with noise, get no lint."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        sums = [torch.zeros_like(each) for each in model.parameters()]
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(1, 4)).square().mean()).backward()
            for parameter, total in zip(model.parameters(), sums, strict=True):
                total.add_(parameter.grad / parameter.grad.norm().clamp(min=1))
        for parameter, total in zip(model.parameters(), sums, strict=True):
            parameter.grad.copy_(total).add_(torch.randn_like(total))
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


def test_a_weighted_sum_after_the_gradients_of_its_tasks_is_right(data_directory: Path) -> None:
    """Tasks whose gradients are read and cleared to weight a sum of their losses, as in MGDA, get no lint."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        inputs, norms = torch.randn(16, 4), []
        for power in (2, 3):
            optimizer.zero_grad()
            scaler.scale(model(inputs).pow(power).mean()).backward()
            norms.append(sum(each.grad.norm() for each in model.parameters()))
        optimizer.zero_grad()
        one, other = (model(inputs).pow(power).mean() for power in (2, 3))
        scaler.scale(one * norms[1] + other * norms[0]).backward()
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_gradients_handed_on_in_chunks_are_right(
    data_directory: Path, learns: bool, several: bool
) -> None:
    """Gradients of a scaled loss that the loop passes on chunk by chunk, as GradCache does, get no lint.

    The model may have several optimizers, as Muon and AdamW.
    """
    model, optimizer, scaler = small()
    optimizers = [optimizer]
    if several:
        optimizers = [SGD([each], lr=0.01) for each in model.parameters()]
        optimizer = optimizers[0]
    temperature = nn.Parameter(torch.ones(()))
    optimizer.add_param_group({"params": [temperature]})
    for _ in range(UPDATES):
        for each in optimizers:
            each.zero_grad()
        chunks = torch.randn(16, 4).split(4)
        with torch.no_grad():
            outputs = torch.cat([model(each) for each in chunks])
        outputs.requires_grad_()
        scaler.scale((outputs * (temperature if learns else 2.0)).square().mean()).backward()
        assert outputs.grad is not None
        for chunk, gradient in zip(chunks, outputs.grad.split(4), strict=True):
            (model(chunk) * gradient).sum().backward()
        finish(scaler, *optimizers)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("helped", [False, True])
def test_a_model_split_by_hand_is_right(
    data_directory: Path, parts: int, several: bool, helped: bool
) -> None:
    """Parts with optimizers of their own, between which the loop passes on gradients, get no lint.

    One part may come twice. Another loss may reach the first part alone.
    """
    trained = [small(name=f"part {number}") for number in range(parts)]
    optimizers, scaler = [optimizer for _, optimizer, _ in trained], trained[0][2]
    if several:
        optimizers = [SGD([each], lr=0.01) for model, *_ in trained for each in model.parameters()]
    for _ in range(UPDATES):
        cuts: list[tuple[torch.Tensor, torch.Tensor]] = []
        hidden = torch.randn(16, 4)
        for each in optimizers:
            each.zero_grad()
        for model, *_ in trained * (2 if parts == 1 else 1):
            output = model(hidden).expand(-1, 4)
            cuts.append((output, hidden := output.detach().requires_grad_()))
        if helped:
            scaler.scale(cuts[0][0].mean()).backward(retain_graph=True)
        scaler.scale(cuts.pop()[0].square().mean()).backward()
        for output, cut in reversed(cuts):
            output.backward(cut.grad)
        finish(scaler, *optimizers)
    assert lints_by_scaler(data_directory) == {}


def test_an_unscaled_loss_beside_a_penalty_on_inputs_is_reported(data_directory: Path) -> None:
    """A GAN whose generator's loss is not scaled gets the lint, though the other loss depends on inputs too."""
    first, first_optimizer, scaler = small()
    second = nn.Linear(1, 4)
    second_optimizer = SGD(second.parameters(), lr=0.01)
    for _ in range(UPDATES):
        first_optimizer.zero_grad()
        inputs = second(torch.randn(16, 1)).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(first(inputs).sum(), inputs, create_graph=True)
        scaler.scale(first(inputs).mean() + gradient.square().mean()).backward()
        second_optimizer.zero_grad()
        first(second(torch.randn(16, 1))).cos().mean().backward()
        finish(scaler, first_optimizer, second_optimizer)
    assert lints_by_scaler(data_directory) == {"scaler": {"unscaled_loss"}}


def test_a_loss_of_another_scaler_is_reported(data_directory: Path) -> None:
    """A GAN that scales each loss with the other model's scaler gets the lint for both, with the reason."""
    model, optimizer, scaler = small(name="one")
    other_model, other_optimizer, other_scaler = small(scale=32.0, name="other")
    for _ in range(UPDATES):
        optimizer.zero_grad()
        other_optimizer.zero_grad()
        other_scaler.scale(model(torch.randn(16, 4)).square().mean()).backward()
        scaler.scale(other_model(torch.randn(16, 4)).square().mean()).backward()
        finish(scaler, optimizer)
        finish(other_scaler, other_optimizer)
    lints = [lint for each in recordings(data_directory) for lint in each.events("lint")]
    assert {(lint.stream, lint.detail["title"]) for lint in lints} == {
        (each, "A backward pass starts from a loss that another scaler scaled")
        for each in ("one", "other")
    }


def test_a_gradient_in_reused_memory_is_another_one() -> None:
    """A gradient at the address of a freed one does not count as the same gradient."""
    place = np.zeros(8, np.float32)
    gradient = torch.from_numpy(place)
    memory = _memory(gradient)
    assert memory == _memory(gradient.detach())
    del gradient
    assert memory != _memory(torch.from_numpy(place))


def test_gradients_of_zero_that_are_clipped_between_passes_are_right(data_directory: Path) -> None:
    """Gradients that are zero by themselves, as behind an adapter that begins at zero, were not cleared."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for _ in range(2):
            scaler.scale((model(torch.randn(16, 4)) * 0).mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("exchanged", [False, True])
def test_weights_moved_between_passes_are_right(data_directory: Path, *, exchanged: bool) -> None:
    """A method that climbs before it descends, and clears the gradients of the climb, gets no lint.

    It may write into the weights, as SAM does, or give them other memory, as AWP does.
    """
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        inputs, steps = torch.randn(16, 4), []
        scaler.scale(model(inputs).square().mean()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                steps.append(parameter.grad / scaler.get_scale())
                if exchanged:
                    parameter.data = parameter + steps[-1]
                else:
                    parameter.add_(steps[-1])
        optimizer.zero_grad()
        scaler.scale(model(inputs).square().mean()).backward()
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), steps, strict=True):
                parameter.sub_(step)
        finish(scaler, optimizer)
        optimizer.zero_grad()
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_given_back_before_the_last_pass_are_right(
    data_directory: Path, to_none: bool
) -> None:
    """A method that clears the gradients of its attacks on the weights, and gives back the first, gets no lint.

    It writes through `.data`, which neither changes the weights' version nor gives them other memory.
    """
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        inputs = torch.randn(16, 4)
        optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(model(inputs).square().mean()).backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        first = [parameter.grad.clone() for parameter in model.parameters()]
        for last in (False, True):
            for parameter, gradient in zip(model.parameters(), first, strict=True):
                parameter.data.add_(0.1 * parameter.grad / parameter.grad.norm())
                if last:
                    parameter.grad = gradient
            if not last:
                optimizer.zero_grad(set_to_none=to_none)
            scaler.scale(model(inputs).square().mean()).backward()
        for parameter, values in zip(model.parameters(), before, strict=True):
            parameter.data = values
        finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("to_none", [True, False])
def test_an_attack_on_the_inputs_before_the_step_is_right(
    data_directory: Path, to_none: bool
) -> None:
    """Adversarial training, which clears the gradients of the pass that only its inputs need, gets no lint."""
    model, optimizer, scaler = small()
    for _ in range(UPDATES):
        inputs = torch.randn(16, 4, requires_grad=True)
        scaler.scale(model(inputs).square().mean()).backward()
        assert inputs.grad is not None
        attacked = inputs.detach() + 0.1 * inputs.grad.sign()
        optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(model(attacked).square().mean()).backward()
        finish(scaler, optimizer)
        optimizer.zero_grad(set_to_none=to_none)
    assert lints_by_scaler(data_directory) == {}


@pytest.mark.parametrize("kept", [None, "state", "scale", "optimizer"])
def test_a_scaler_made_for_each_epoch_is_reported(data_directory: Path, kept: str | None) -> None:
    """The third new scaler of an optimizer gets one lint, unless it inherits state or scale or the optimizer is new."""
    model, optimizer, scaler = small(name="scaler 0")
    for epoch in range(5):
        if epoch:
            before, scale = scaler, scaler.get_scale() / 2 if kept == "scale" else 64.0
            scaler = ampmon.GradScaler("cpu", init_scale=scale, name=f"scaler {epoch}")
            if kept == "state":
                scaler.load_state_dict(before.state_dict())
            if kept == "optimizer":
                optimizer = SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(16, 4)).square().mean()).backward()
            finish(scaler, optimizer)
    assert lints_by_scaler(data_directory) == ({} if kept else {"scaler 2": {"scaler_made_anew"}})


def test_a_scaler_that_is_pickled_after_each_epoch_is_not_made_anew(data_directory: Path) -> None:
    """Unpickled scalers go on with the state of the one before, even if each epoch ends with the same state."""
    model, optimizer, _ = small()
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    for _ in range(5):
        for factor in (1.0, 1.0, math.inf):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(16, 4)).square().mean() * factor).backward()
            finish(scaler, optimizer)
        scaler = pickle.loads(pickle.dumps(scaler))
    assert lints_by_scaler(data_directory) == {}
