"""If gradients are sums of several backward passes, a sample says what each pass added, and training is unchanged.

Real passes on a CPU. device/waits_suite.py counts waits on the emulated device; test_distributed.py covers DDP.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import ampmon
from ampmon.numerics.histogram import Statistics
from ampmon.probe.arrivals import PassMeasurer
from ampmon.probe.budget import Budget
from ampmon.probe.hooks import WeakHook
from ampmon.probe.timing import Account, DeviceTimer
from recording import recording
from scaler.test_parity import bits


EXACT = ampmon.Config(every=1, sample="all")
UPDATES = 4
PASSES = 3


class Net(nn.Module):
    """Linear layers around a norm, whose gradients are in fp32."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(16, width)
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.tanh(self.norm(self.first(inputs))))
        return outputs


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return a small loss, computed in fp16."""
    with torch.autocast("cpu", dtype=torch.float16):
        outputs = model(inputs)
    return outputs.float().square().mean() * 1e-3


def unhooked(model: nn.Module) -> bool:
    """Return whether no parameter has hooks of a sample, or an empty list of hooks for torch to call."""
    after = [
        hook
        for each in model.parameters()
        for hook in (each._post_accumulate_grad_hooks or {}).values()
    ]
    if any(isinstance(each, WeakHook) and each.function is PassMeasurer.added for each in after):
        return False
    return all(each._backward_hooks is None for each in model.parameters())


# -- what a sample says -----------------------------------------------------------------------------


def trained_on_one_batch(passes: int, sample: Any = "all", width: int = 32) -> float:
    """Run updates that change no weight, with ``passes`` over the same batch; return the norm of the last gradient."""
    torch.manual_seed(0)
    model, inputs = Net(width), torch.randn(8, 16)
    optimizer = SGD(model.parameters(), lr=0.0)
    config = ampmon.Config(every=1, sample=sample)
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, model=model, monitor=config)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for _ in range(passes):
            scaler.scale(loss_of(model, inputs) / passes).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    return float(nn.utils.clip_grad_norm_(model.parameters(), float("inf")))


@pytest.mark.parametrize("width", [32, 9000])
def test_a_sample_is_of_a_pass_and_its_norm_of_the_sum(data_directory: Path, width: int) -> None:
    """Three equal passes are sampled like one alone, with the norm of their sum, however large the tensors are."""
    norm = trained_on_one_batch(PASSES, width=width)
    found = recording(data_directory).statistics(UPDATES - 1)
    torch.manual_seed(0)
    model, inputs = Net(width), torch.randn(8, 16)
    (loss_of(model, inputs) / PASSES * 64.0).backward()
    brought = [each.grad for each in model.parameters() if each.grad is not None]
    wide = [each.flatten().double().numpy() for each in brought]
    assert found.looked.tolist() == [len(each) for each in wide]
    assert found.zeros.tolist() == [int((each == 0).sum()) for each in wide]
    small = [int(((each != 0) & (np.abs(each) < 2.0**-14)).sum()) for each in wide]
    classes = found.classes()
    assert (classes.below_grid + classes.subnormal).tolist() == small
    assert found.amax.tolist() == [np.abs(each).max() for each in wide]
    assert np.sqrt(found.sum_squares.sum()) / 64.0 == pytest.approx(norm, rel=1e-5)
    assert found.on_grid.tolist() == [on_grid(each) for each in wide]
    assert found.grid_mask.all()
    assert on_grid(PASSES * wide[0]) < 0.99 * len(wide[0])


def on_grid(elements: Any) -> int:
    """Return how many elements fp16 can hold."""
    return int((elements == elements.astype(np.float16)).sum())


def test_passes_are_joined(data_directory: Path) -> None:
    """The sample of different passes has their average counts and their largest element."""
    brought = [
        torch.tensor([2.0**-20, 0.0, 1.0, 3.0]),
        torch.tensor([2.0**-20, 0.0, 0.0, 2.0**-16]),
        torch.tensor([2.0**-20, 0.0, 512.0, 0.0]),
        torch.tensor([2.0**-20, 0.0, 0.0, 2.0**-17]),
    ]
    weight = nn.Parameter(torch.zeros(4))
    optimizer = SGD([weight], lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, monitor=EXACT)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for each in brought:
            scaler.scale((weight * each).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    statistics = recording(data_directory).statistics(UPDATES - 1)
    classes = statistics.classes()
    counts = classes.zero, classes.subnormal, classes.normal
    assert [count.tolist() for count in counts] == [[2], [1], [1]]  # 7, 6 and 3 of 16
    assert statistics.looked.tolist() == [4]
    assert statistics.amax.tolist() == [512.0]
    total = torch.stack(brought).sum(0)
    assert statistics.sum_squares.item() == pytest.approx(float(total.square().sum()))


def sampled_alone(data_directory: Path, brought: Tensor, others: Callable[[Tensor], None]) -> None:
    """Check that a sample is of the pass that brings ``brought``, whatever ``others`` do with the weight before it."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = SGD([weight], lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        scaler.scale(torch.ones(()))
        others(weight)
        scaler.scale((weight * brought).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    for update in range(1, UPDATES):
        statistics = recording(data_directory).statistics(update)
        assert statistics.amax.tolist() == [float(2 * brought.max())]
        assert statistics.zeros.tolist() == [int((brought == 0).sum())]
        assert statistics.sum_squares.tolist() == [float((2 * brought).square().sum())]


def test_gradients_that_are_only_returned_do_not_count(data_directory: Path) -> None:
    """`torch.autograd.grad` adds to no `.grad`, so what it returns is not in the sample."""
    sampled_alone(
        data_directory,
        torch.tensor([0.0, 1.0, 2.0, 3.0]),
        lambda weight: torch.autograd.grad((weight * 2.0**-20).sum(), weight) and None,
    )


def test_a_pass_that_builds_a_graph_does_not_count_what_was_only_returned(
    data_directory: Path,
) -> None:
    """The sample has neither what `torch.autograd.grad` returned nor what a pass with a graph adds after it."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = SGD([weight], lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, monitor=EXACT)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        torch.autograd.grad(scaler.scale(weight.sum() * 1000), weight)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a cycle that it makes
            scaler.scale(weight.sum()).backward(create_graph=True)
        scaler.step(optimizer)
        scaler.update()
    statistics = recording(data_directory).statistics(2)
    assert statistics.amax.tolist() == [1.0]


def test_gradients_that_are_discarded_do_not_count(data_directory: Path) -> None:
    """A pass whose gradient is cleared before the step, as in a GAN's loop, is not in the sample."""

    def discarded(weight: Tensor) -> None:
        (weight * 1e4).sum().backward()
        weight.grad = None

    sampled_alone(data_directory, torch.tensor([0.0, 1.0, 2.0, 3.0]), discarded)


def test_of_many_passes_some_are_measured(data_directory: Path) -> None:
    """Of 16 passes at most five are measured, and not the same ones in every sample."""
    weight = nn.Parameter(torch.zeros(64))
    optimizer = SGD([weight], lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, monitor=EXACT)
    for _ in range(40):
        optimizer.zero_grad()
        for number in range(16):
            scaler.scale(weight[0] * 2.0**number).backward()
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    seen = [recorded.statistics(update).amax.item() for update in range(1, 40)]
    assert set(seen) <= {2.0**number for number in range(12, 16)}
    assert len(set(seen)) > 1


def test_a_default_sample_looks_at_as_many_elements_as_without_accumulation(
    data_directory: Path,
) -> None:
    """Each pass samples a large tensor anew, and the joined sample has as many elements as one of them."""
    trained_on_one_batch(PASSES, sample=1024, width=2000)
    statistics = recording(data_directory).statistics(UPDATES - 1)
    assert statistics.looked.max() == 1024
    statistics.check()


def test_the_first_update_is_not_sampled_as_a_sum(data_directory: Path) -> None:
    """The first update is not sampled, because its parameters are not known before it; the next one is."""
    trained_on_one_batch(PASSES)
    sampled = [each.gradients is not None for each in recording(data_directory).updates]
    assert sampled == [False, True, True, True]


def test_two_losses_that_reach_parameters_of_their_own_are_sampled_as_ever(
    data_directory: Path,
) -> None:
    """If several losses are scaled but each parameter gets one pass, its gradient is measured in place."""
    torch.manual_seed(0)
    models = [Net(), Net()]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, model=models, monitor=EXACT)
    for _ in range(UPDATES):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, torch.randn(8, 16))).backward()
            scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    assert [len(recorded.statistics(update)) for update in range(1, UPDATES)] == [12, 12, 12]


def test_optimizers_that_are_updated_by_turns_are_both_sampled(data_directory: Path) -> None:
    """Two optimizers that are updated in turns are both sampled: the last sequence predicts whose turn is next."""
    models = [Net(), Net()]
    optimizers = [SGD(model.parameters(), lr=0.1) for model in models]
    config = ampmon.Config(every=4, sample="all")
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, monitor=config, growth_interval=10**6)
    for update in range(20):
        model, optimizer = models[update % 2], optimizers[update % 2]
        optimizer.zero_grad()
        for _ in range(2):
            scaler.scale(loss_of(model, torch.randn(8, 16))).backward()
        scaler.step(optimizer)
        scaler.update()
    updates = recording(data_directory).updates
    sampled = [update.ordinal for update in updates if update.gradients is not None]
    assert {ordinal % 2 for ordinal in sampled[2:]} == {0, 1}
    assert len(sampled) < 10


@pytest.mark.parametrize("more", [1, 5])
def test_passes_of_optimizers_by_turns_are_measured_alone(data_directory: Path, more: int) -> None:
    """Where an optimizer steps ``more`` times before another one does, each sample is of a pass, not of the sum."""
    weights = [nn.Parameter(torch.zeros(8)) for _ in range(2)]
    optimizers = [SGD([each], lr=0.0) for each in weights]
    config = ampmon.Config(every=20, sample="all")
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, growth_interval=10**6, monitor=config)
    for update in range(132):
        which = int(update % (more + 1) == more)
        optimizers[which].zero_grad()
        for factor in (1.0, 2.0):
            scaler.scale((weights[which] * factor).sum()).backward()
        scaler.step(optimizers[which])
        scaler.update()
    updates = recording(data_directory).updates
    sampled = [Statistics.from_wire(each.gradients) for each in updates if each.gradients]
    assert {each.amax.item() for each in sampled} == {2.0}
    assert {int(each.parameters[0]) for each in sampled} == {0, 1}


def test_an_optimizer_for_each_update_keeps_the_interval(data_directory: Path) -> None:
    """Where each update has an optimizer of its own, all of them together are sampled once in the interval."""
    model = Net()
    config = ampmon.Config(every=20, sample="all")
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, growth_interval=10**6, monitor=config)
    optimizers = [SGD(model.parameters(), lr=0.1) for _ in range(100)]
    for optimizer in optimizers:
        scaler.scale(loss_of(model, torch.randn(8, 16))).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    updates = recording(data_directory).updates
    sampled = [update.ordinal for update in updates if update.gradients is not None]
    assert sampled[-4:] == [20, 40, 60, 80]
    assert len(sampled) <= 12


def test_a_parameter_that_joins_is_measured_once_its_passes_are(data_directory: Path) -> None:
    """The first sample after a parameter has joined leaves it out, because its gradient is a sum; the next has it."""
    old, new = (nn.Parameter(torch.zeros(8)) for _ in range(2))
    optimizer = SGD([old], lr=0.0)
    config = ampmon.Config(every=20, sample="all")
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, growth_interval=10**6, monitor=config)
    for update in range(84):
        if update == 50:
            optimizer.add_param_group({"params": [new]})
        optimizer.zero_grad()
        for factor in (1.0, 2.0):
            scaler.scale(((old + new) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    updates = recording(data_directory).updates
    sampled = {
        each.ordinal: Statistics.from_wire(each.gradients) for each in updates if each.gradients
    }
    amax = {ordinal: each.amax.tolist() for ordinal, each in sampled.items()}
    assert amax == {1: [2.0], 20: [2.0], 40: [2.0], 60: [2.0], 80: [2.0, 2.0]}


class Tied(nn.Module):
    """A weight that is used twice: by linear layers alone, or by an embedding too."""

    def __init__(self, *, embeds: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.embeds = embeds

    def forward(self, inputs: Tensor) -> Tensor:
        if self.embeds:
            hidden = nn.functional.embedding(inputs.argmax(1), self.weight)
        else:
            hidden = nn.functional.linear(inputs, self.weight)
        return nn.functional.linear(torch.tanh(hidden), self.weight)


@pytest.mark.parametrize("embeds", [False, True], ids=["", "embedding"])
def test_tied_weights_are_summed_before_a_hook_sees_them(
    data_directory: Path, embeds: bool
) -> None:
    """Tied weights are on fp16's grid if they share autocast's cast; an embedding sums in fp32, off the grid."""
    torch.manual_seed(0)
    model = Tied(embeds=embeds)
    optimizer = SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, monitor=EXACT)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        accumulated(scaler, model, optimizer)
        scaler.step(optimizer)
        scaler.update()
    statistics = recording(data_directory).statistics(UPDATES - 1)
    assert statistics.grid_mask.tolist() == [not embeds]


def test_a_sparse_gradient_is_measured_as_it_lies(data_directory: Path) -> None:
    """The passes of a sparse gradient lie side by side in `.grad`, and all their values are measured."""
    embedding = nn.Embedding(10, 4, sparse=True)
    optimizer = SGD(embedding.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for _ in range(PASSES):
            scaler.scale(embedding(torch.tensor([1, 2])).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    assert recording(data_directory).statistics(UPDATES - 1).looked.tolist() == [PASSES * 2 * 4]


# -- training is untouched --------------------------------------------------------------------------


def accumulated(scaler: Any, model: nn.Module, optimizer: SGD) -> None:
    """Passes over different batches."""
    for _ in range(PASSES):
        scaler.scale(loss_of(model, torch.randn(8, 16)) / PASSES).backward()


def retained(scaler: Any, model: nn.Module, optimizer: SGD) -> None:
    """Two losses, and two passes through the graph of each."""
    for _ in range(2):
        scaled = scaler.scale(loss_of(model, torch.randn(8, 16)))
        scaled.backward(retain_graph=True)
        scaled.backward()


def raising(scaler: Any, model: nn.Module, optimizer: SGD) -> None:
    """A pass that fails in the middle of backward, and is then repeated."""
    scaled = scaler.scale(loss_of(Failing(model), torch.randn(8, 16)))
    with contextlib.suppress(ZeroDivisionError):
        scaled.backward()
    optimizer.zero_grad()
    accumulated(scaler, model, optimizer)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        raise ZeroDivisionError


class Failing(nn.Module):
    """The net with a hidden layer that raises in backward."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = _Fails.apply(self.net.first(inputs))  # type: ignore[no-untyped-call]
        outputs: Tensor = self.net.last(self.net.norm(hidden))
        return outputs


def _checkpointed(*, reentrant: bool) -> Callable[[Any, nn.Module, SGD], None]:
    def passes(scaler: Any, model: nn.Module, optimizer: SGD) -> None:
        """Passes that run the forward pass again."""
        for _ in range(2):
            inputs = torch.randn(8, 16, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.float16):
                outputs = checkpoint(model, inputs, use_reentrant=reentrant)
            scaler.scale(outputs.float().square().mean()).backward()

    return passes


def penalised(scaler: Any, model: nn.Module, optimizer: SGD) -> None:
    """torch's recipe for a gradient penalty: gradients with a graph of their own, unscaled, and added to the loss."""
    loss = loss_of(model, torch.randn(8, 16))
    gradients = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    penalty = sum(((each / scaler.get_scale()) ** 2).sum() for each in gradients)
    scaler.scale(loss + penalty).backward()


def adversarial(scaler: Any, model: nn.Module, optimizer: SGD) -> None:
    """A pass whose gradients are discarded, one that only returns them, and one for the step."""
    scaler.scale(loss_of(model, torch.randn(8, 16))).backward()
    optimizer.zero_grad()
    torch.autograd.grad(loss_of(model, torch.randn(8, 16)), list(model.parameters()))
    scaler.scale(loss_of(model, torch.randn(8, 16))).backward()


PASSES_OF = {
    "adversarial": adversarial,
    "accumulated": accumulated,
    "retained": retained,
    "raising": raising,
    "checkpointed": _checkpointed(reentrant=False),
    "checkpointed by reentry": _checkpointed(reentrant=True),
    "penalised": penalised,
}


def train(scaler: Any, passes: Callable[[Any, nn.Module, SGD], None], *, clip: bool) -> Any:
    """Run updates of which one overflows; return everything that they leave behind."""
    torch.manual_seed(0)
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for update in range(6):
        optimizer.zero_grad()
        passes(scaler, model, optimizer)
        if update == 3:
            model.last.bias.grad[0] = torch.inf
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        assert unhooked(model)
    weights = [each.detach().clone() for each in model.parameters()]
    return weights, optimizer.state_dict(), scaler.state_dict(), torch.rand(4)


@pytest.mark.parametrize("clip", [False, True], ids=["", "clipped"])
@pytest.mark.parametrize("name", PASSES_OF)
@pytest.mark.filterwarnings("ignore:.*use_reentrant")
def test_training_is_that_of_the_stock_scaler(name: str, clip: bool) -> None:
    """However passes are made, weights, states and random numbers are bit for bit stock, and no hook is left."""
    options: dict[str, Any] = {"init_scale": 1024.0, "growth_interval": 3}
    stock = train(torch.amp.GradScaler("cpu", **options), PASSES_OF[name], clip=clip)
    for config in (EXACT, ampmon.Config(every=2, sample=64)):
        scaler = ampmon.GradScaler("cpu", **options, monitor=config)
        assert bits(stock, train(scaler, PASSES_OF[name], clip=clip))
        assert scaler.monitor is not None
        assert scaler.monitor.errors == 0
        assert scaler.monitor.samples >= 2


def test_a_gradient_is_neither_kept_nor_copied() -> None:
    """The first gradient becomes `.grad` itself, as without a hook."""
    weight, places = nn.Parameter(torch.ones(1000)), []
    optimizer = SGD([weight], lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0, monitor=EXACT)
    weight.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for _ in range(2):
            scaler.scale((weight * 2).sum()).backward()
        assert weight.grad is not None
        assert weight.grad.data_ptr() == places[-2]
        scaler.step(optimizer)
        scaler.update()


# -- when there are hooks ---------------------------------------------------------------------------


def begun() -> tuple[Any, nn.Module, SGD]:
    """Return a loop of several passes whose next update is sampled."""
    torch.manual_seed(0)
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, monitor=EXACT)
    for _ in range(2):
        optimizer.zero_grad()
        accumulated(scaler, model, optimizer)
        scaler.step(optimizer)
        scaler.update()
    return scaler, model, optimizer


def test_there_are_hooks_only_in_iterations_that_are_sampled(data_directory: Path) -> None:
    """Parameters have hooks only in the iterations that are sampled."""
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = ampmon.GradScaler("cpu", init_scale=64.0, monitor=ampmon.Config(every=4))
    hooked = []
    for _ in range(9):
        optimizer.zero_grad()
        accumulated(scaler, model, optimizer)
        hooked.append(not unhooked(model))
        scaler.step(optimizer)
        scaler.update()
    assert [update for update, each in enumerate(hooked) if each] == [1, 4, 8]
    updates = recording(data_directory).updates
    assert [each.ordinal for each in updates if each.gradients is not None] == [1, 4, 8]


def test_an_iteration_that_ends_without_a_step_leaves_no_hook() -> None:
    """An iteration that ends by `update()` without a step, or by deleting the scaler, leaves no hook."""
    scaler, model, optimizer = begun()
    accumulated(scaler, model, optimizer)
    assert not unhooked(model)
    scaler.update(64.0)
    assert unhooked(model)
    accumulated(scaler, model, optimizer)
    scaler.step(optimizer)
    scaler.update()
    accumulated(scaler, model, optimizer)
    assert not unhooked(model)
    del scaler
    gc.collect()
    assert not any(each._backward_hooks for each in model.parameters())


def test_a_users_own_hook_stays() -> None:
    """A user's hook that is set during a sampled iteration fires in its passes and in those of the next."""
    scaler, model, optimizer = begun()
    fired: list[Tensor] = []
    accumulated(scaler, model, optimizer)
    model.last.weight.register_hook(fired.append)
    for _ in range(2):
        accumulated(scaler, model, optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert len(fired) == 2 * PASSES


def test_a_model_is_copied_and_pickled_without_hooks() -> None:
    """During a sampled iteration a copy of the model has no hooks, and neither copying nor pickling warns."""
    scaler, model, optimizer = begun()
    accumulated(scaler, model, optimizer)
    assert not unhooked(model)
    assert unhooked(copy.deepcopy(model))
    assert not any(each._backward_hooks for each in pickle.loads(pickle.dumps(model)).parameters())
    leaf = torch.ones(2, requires_grad=True)
    leaf._backward_hooks = dict(model.last.weight._backward_hooks or {})
    pickle.dumps(leaf)


@pytest.mark.parametrize("where", ["arrivals.local_elements", "host.measure_drawn"])
def test_an_error_in_measuring_is_the_monitors_own(
    monkeypatch: pytest.MonkeyPatch, where: str, data_directory: Path
) -> None:
    """An error in measuring is counted once, loses no update, and gradients are measured as sums from then on."""
    scaler, model, optimizer = begun()

    def broken(*_: object) -> None:
        raise OSError("of the test")

    def update() -> None:
        accumulated(scaler, model, optimizer)
        scaler.step(optimizer)
        scaler.update()

    monkeypatch.setattr(f"ampmon.probe.{where}", broken)
    with pytest.warns(UserWarning, match="of the test"):
        update()
    monkeypatch.undo()
    update()
    assert scaler.monitor.errors == 1
    assert unhooked(model)
    sampled = [each.gradients is not None for each in recording(data_directory).updates]
    assert sampled == [False, True, True, True]


class Refusing(nn.Parameter):
    """A parameter that takes hooks on its gradient, and none that are called once the gradient is added."""

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        raise RuntimeError("of the test")


def test_a_parameter_that_takes_only_one_of_its_hooks_keeps_none() -> None:
    """If the second hook of a parameter cannot be installed, the first one is removed again, and that is reported."""
    model, errors = nn.ParameterList([Refusing(torch.ones(4))]), []
    timer = DeviceTimer(lambda *_: None)
    measurer = PassMeasurer(
        lambda: enumerate(model.parameters()),
        "all",
        lambda where, error: errors.append(str(error)),
        Account(Budget("auto", 1.0), timer),
        timer,
    )
    measurer.begin(1, reduced=False)
    assert measurer.end() is None
    assert (unhooked(model), errors) == (True, ["of the test"])


def test_a_model_is_converted_by_swapping_afterwards() -> None:
    """After sampled iterations torch can still swap parameters on conversion, and a user's hook fires."""
    scaler, model, optimizer = begun()
    fired: list[Tensor] = []
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    model.last.weight.register_hook(fired.append)
    accumulated(scaler, model, optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert len(fired) == PASSES
    assert scaler.monitor.errors == 0


def test_a_model_is_converted_by_swapping_between_passes() -> None:
    """Between two passes of a sampled iteration, torch can swap parameters together with their gradients."""
    scaler, model, optimizer = begun()
    scaler.scale(loss_of(model, torch.randn(8, 16))).backward()
    assert not unhooked(model)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double().float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    scaler.scale(loss_of(model, torch.randn(8, 16))).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.monitor.errors == 0
