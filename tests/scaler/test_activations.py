"""`Config(activations=...)` records the fp16 gradients of module outputs, and how large the outputs are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

import ampmon
from ampmon.activations import gathering
from recording import Activations, recording


EVERY = ampmon.Config(activations=1, sample="all")
"""Every update is sampled, and every element measured."""


def run(
    model: nn.Module,
    *inputs: torch.Tensor,
    config: ampmon.Config = EVERY,
    updates: int = 1,
    scale: float = 1024.0,
    dtype: torch.dtype = torch.float16,
) -> None:
    """Run updates of a monitored model that learn nothing, each after backward passes over all ``inputs``."""
    optimizer = SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=scale, model=model, monitor=config)
    for _ in range(updates):
        for each in inputs:
            with torch.autocast("cpu", dtype=dtype):
                output = model(each)
            scaler.scale(output.float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def layers(*, inplace: bool = False, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=inplace), nn.Linear(16, 4))


def batch(rows: int = 32) -> torch.Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1))


def seen(directory: Path) -> list[Activations]:
    """Return the first sample of each monitored model, in order."""
    recorded = recording(directory)
    streams = dict.fromkeys(update.stream for update in recorded.updates)
    return [recorded.activations(0, stream) for stream in streams]


class Wrapped(nn.Module):
    """A module around another one, which it calls by ``call``."""

    def __init__(self, inner: nn.Module, call: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner = inner
        self.call = call

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.call(self.inner, inputs)


@pytest.mark.parametrize(
    ("exponent", "back", "weights"),
    [(0, 17.38, 1.761), (2, 4.47, 0.471), (4, 1.12, 0.100), (8, 0.07, 0.004), (16, 0.0, 0.0)],
)
def test_activation_gradients_underflow_where_weight_gradients_hardly_do(
    exponent: int, back: float, weights: float, data_directory: Path
) -> None:
    """fp16 flushes 17 % of a tanh MLP's activation gradients at scale 1, ten times as many as of its weights'."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 10)
    )
    torch.manual_seed(1)
    inputs, targets = torch.randn(256, 64), torch.randint(0, 10, (256,))
    scaler = ampmon.GradScaler("cpu", init_scale=2.0**exponent, model=model, monitor=EVERY)
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(inputs)
    scaler.scale(nn.functional.cross_entropy(output.float(), targets) * 1e-3).backward()
    scaler.step(SGD(model.parameters(), lr=0.0))
    scaler.update()

    recorded = recording(data_directory)
    activations = recorded.activations(0)
    assert activations.names == ["0", "1", "2", "3", "4"]
    assert activations.elements == [256 * 128] * 4 + [256 * 10]
    assert zeros(activations.statistics) == pytest.approx(back, abs=0.006)
    assert zeros(recorded.statistics(0)) == pytest.approx(weights, abs=0.0006)


def zeros(statistics: Any) -> float:
    """Return the zeros in percent of all elements."""
    return float(100 * statistics.zeros.sum() / statistics.looked.sum())


def test_the_statistics_are_those_of_the_gradients(data_directory: Path) -> None:
    """Counts, bins, extremes and sums are those of the scaled gradients that a user's own hook sees."""
    model, gradients, outputs = layers(), {}, {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
            outputs[name] = output.detach().double()
            output.register_hook(lambda gradient: gradients.update({name: gradient.double()}))

        return hook

    for name, module in model.named_children():
        module.register_forward_hook(keep(name))
    run(model, batch())

    (activations,) = seen(data_directory)
    statistics = activations.statistics
    assert activations.names == list(gradients)[::-1] == ["0", "1", "2"]
    for row, name in enumerate(activations.names):
        gradient = gradients[name].flatten().numpy()
        nonzero = np.abs(gradient[gradient != 0])
        bins = np.clip(np.floor(np.log2(nonzero)).astype(int) + 40, 0, 63)
        assert activations.elements[row] == statistics.looked[row] == gradient.size
        assert statistics.zeros[row] == gradient.size - nonzero.size
        assert statistics.on_grid[row] == gradient.size
        assert statistics.histogram[row].tolist() == np.bincount(bins, minlength=64).tolist()
        assert statistics.amax[row] == nonzero.max()
        assert statistics.sum_squares[row] == pytest.approx((gradient**2).sum())
        assert activations.forward[row] == outputs[name].abs().max()


def alike(one: Activations, other: Activations) -> bool:
    """Return whether two samples saw the same gradients in the same order."""
    return one.elements == other.elements and all(
        np.array_equal(getattr(one.statistics, name), getattr(other.statistics, name))
        for name in ("looked", "zeros", "amax", "histogram")
    )


def test_micro_batches_add_up(data_directory: Path) -> None:
    """Two backward passes before an update are one sample: elements add up, and the larger output is kept."""
    small, large = batch(8), 4 * batch(24)
    run(layers(), small, large)
    run(layers(), small)
    run(layers(), large)
    together, one, other = seen(data_directory)

    assert together.elements == [a + b for a, b in zip(one.elements, other.elements, strict=True)]
    assert together.forward == list(map(max, one.forward, other.forward))
    added = one.statistics.histogram + other.statistics.histogram
    np.testing.assert_array_equal(together.statistics.histogram, added)


def test_a_module_that_is_called_twice_counts_twice(data_directory: Path) -> None:
    """A layer that is used twice in the forward pass has the gradients of both uses."""
    torch.manual_seed(0)
    run(Wrapped(nn.Linear(8, 8), lambda inner, inputs: inner(inner(inputs))), batch())
    (activations,) = seen(data_directory)

    # The whole model returns the last output of its layer, which counts for the layer.
    assert activations.names == ["inner"]
    assert activations.elements == [2 * 32 * 8]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda inner, inputs: inner(inputs), ["inner"]),
        (lambda inner, inputs: (inner(inputs), None), ["inner"]),
        (lambda inner, inputs: {"logits": [inner(inputs)]}, ["inner"]),
        (lambda inner, inputs: 2 * inner(inputs), ["inner", "Wrapped"]),
    ],
)
def test_a_tensor_counts_once(
    call: Callable[..., Any], names: list[str], data_directory: Path
) -> None:
    """A container that returns its child's output, bare or in a tuple or a dict, adds nothing."""

    class Head(nn.Module):
        def forward(self, outputs: Any) -> torch.Tensor:
            while not isinstance(outputs, torch.Tensor):
                outputs = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
            return outputs

    torch.manual_seed(0)
    run(nn.Sequential(Wrapped(nn.Linear(8, 4), call), Head(), nn.Identity()), batch())
    (activations,) = seen(data_directory)

    assert activations.names == [f"0.{names[0]}", *("0" for _ in names[1:])]
    assert set(activations.elements) == {32 * 4}


@pytest.mark.parametrize("inner", [nn.ReLU(inplace=True), nn.Identity()])
def test_what_a_module_returns_as_it_was_given_counts_for_it(
    inner: nn.Module, data_directory: Path
) -> None:
    """A tensor that no module produced is the output of the module that returns it, changed in place or not."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(8, 8), Wrapped(inner, lambda inner, inputs: inner(inputs + 1)))
    run(layer, batch())
    (activations,) = seen(data_directory)

    assert activations.names == ["0", "1.inner"]
    assert activations.elements == [32 * 8] * 2


def test_an_input_that_is_an_output_too_is_measured_with_its_negative_elements(
    data_directory: Path,
) -> None:
    """The largest magnitude of an output is exact if it is the model's input, which is looked at as a mask before."""
    inputs = -batch().abs().half()
    run(nn.Sequential(nn.Identity(), nn.Linear(8, 4)), inputs)
    (activations,) = seen(data_directory)

    assert activations.names[0] == "0"
    assert activations.forward[0] == -inputs.min().item()


def test_an_activation_in_place_is_an_output_of_its_own(data_directory: Path) -> None:
    """With ReLU(inplace=True), which returns its input tensor, each layer still has its own gradients."""
    run(layers(inplace=False), batch())
    run(layers(inplace=True), batch())
    apart, in_place = seen(data_directory)

    assert in_place.names == ["0", "1", "2"]
    assert in_place.statistics.zeros[0] > in_place.statistics.zeros[1]  # ReLU stops gradients
    assert alike(apart, in_place)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(reentrant: bool, data_directory: Path) -> None:
    """A checkpointed segment, whose forward pass runs twice, counts once, in the model's order."""

    def call(inner: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        return checkpoint(inner, inputs, use_reentrant=reentrant)

    inputs = batch().requires_grad_()
    run(nn.Sequential(Wrapped(layers(), lambda inner, x: inner(x)), nn.Linear(4, 4)), inputs)
    run(nn.Sequential(Wrapped(layers(), call), nn.Linear(4, 4)), inputs)
    plain, checkpointed = seen(data_directory)

    kept = [index for index, name in enumerate(checkpointed.names) if name in plain.names]
    assert [checkpointed.names[place] for place in kept] == plain.names
    assert [checkpointed.elements[place] for place in kept] == plain.elements
    np.testing.assert_array_equal(
        checkpointed.statistics.histogram[kept].sum(1), plain.statistics.histogram.sum(1)
    )


def test_an_evaluation_does_not_count(data_directory: Path) -> None:
    """A forward pass without gradients between two updates leaves no trace, however large its outputs."""
    model = layers()
    optimizer = SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1024.0, model=model, monitor=EVERY)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            scaler.scale(model(batch()).float().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            model.eval()(1000 * batch())
            model.train()
    recorded = recording(data_directory)

    assert alike(recorded.activations(0), recorded.activations(1))
    assert recorded.activations(0).forward == recorded.activations(1).forward


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_dtypes_are_looked_at_forward_only(dtype: torch.dtype, data_directory: Path) -> None:
    """For bf16 and fp32 outputs only the largest magnitude is recorded: fp16's classes do not fit their gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).to(dtype)
    optimizer = SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1024.0, model=model, monitor=EVERY)
    scaler.scale(model(batch().to(dtype)).float().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    (activations,) = seen(data_directory)

    assert activations.names == ["0", "1", "2"]
    assert activations.elements == activations.statistics.looked.tolist() == [0, 0, 0]
    assert all(0 < largest < 100 for largest in activations.forward)


def test_an_overflow_in_forward_is_distinguished_from_one_in_backward(data_directory: Path) -> None:
    """An overflow in forward shows as an infinite output; after one in backward all outputs are finite."""
    exploding = layers()
    with torch.no_grad():
        for parameter in exploding.parameters():
            parameter.mul_(1000)
    run(exploding, batch())
    run(layers(), batch(), scale=2.0**24)
    forward, backward = seen(data_directory)

    assert list(map(math.isfinite, forward.forward)) == [True, True, False]
    assert all(map(math.isfinite, backward.forward))
    assert backward.statistics.inf.sum() > 0


def test_a_mask_is_no_activation(data_directory: Path) -> None:
    """An fp32 mask full of -inf, to which no gradient comes back, is not recorded as an overflow."""

    class Mask(nn.Module):
        def forward(self, size: int) -> torch.Tensor:
            return torch.full((size, size), -math.inf).triu(1)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mask, self.project = Mask(), nn.Linear(8, 8)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            scores = self.project(inputs) @ inputs.T + self.mask(len(inputs))
            return scores.softmax(-1) @ inputs

    torch.manual_seed(0)
    run(Attention(), batch())
    (activations,) = seen(data_directory)

    assert activations.names == ["project", "Attention"]
    assert all(map(math.isfinite, activations.forward))


def test_a_sample_says_of_how_many_elements_it_is(data_directory: Path) -> None:
    """With `sample`, that many elements of each gradient are measured, and the total is recorded."""
    torch.manual_seed(0)
    run(nn.Linear(8, 64), batch(512), config=ampmon.Config(activations=1, sample=256))
    (activations,) = seen(data_directory)

    assert activations.elements == [512 * 64]
    assert activations.statistics.looked.tolist() == [256]


class Pyramid(nn.Module):
    """A head that is called on a large and on a small level."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 64)

    def forward(self, levels: torch.Tensor) -> Any:
        return torch.cat([self.head(levels[:4096]), 0.0 * self.head(levels[4096:])])


def test_each_element_of_a_modules_gradients_weighs_the_same(data_directory: Path) -> None:
    """A module that is called on a large and on a small input is sampled by their sizes."""
    torch.manual_seed(0)
    run(Pyramid(), batch(4096 + 64), config=ampmon.Config(activations=1, sample=4096))
    (activations,) = seen(data_directory)
    head = activations.names.index("head")
    looked = activations.statistics.looked[head]
    assert activations.elements[head] == (4096 + 64) * 64
    assert 4096 <= looked <= 4096 + 32
    zeros = activations.statistics.zeros[head] / looked
    assert zeros == pytest.approx(64 / (4096 + 64), abs=0.005)


def test_the_origin_of_an_overflow_is_seen_in_a_sample(data_directory: Path) -> None:
    """One element that overflows is found, however few elements are looked at."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64))
    optimizer = SGD(model.parameters(), lr=0.0)
    config = ampmon.Config(activations=1, sample=256)
    scaler = ampmon.GradScaler("cpu", init_scale=1024.0, model=model, monitor=config)
    with torch.autocast("cpu", dtype=torch.float16):
        output = model(batch(512)).float()
    weights = torch.full(output.shape, 1e-3)
    weights[100, 3] = 1e6
    scaler.scale((output * weights).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    (activations,) = seen(data_directory)
    assert activations.statistics.inf.tolist()[-1] == 1


def test_gradients_that_are_only_returned_are_left_out(data_directory: Path) -> None:
    """`torch.autograd.grad` of an unscaled loss, as for the weight of another loss, is not in the sample."""
    for returns in (False, True):
        model = layers()
        optimizer = SGD(model.parameters(), lr=0.0)
        scaler = ampmon.GradScaler("cpu", init_scale=1024.0, model=model, monitor=EVERY)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(batch()).float().square().mean()
        if returns:
            torch.autograd.grad(loss, model[2].weight, retain_graph=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert alike(*seen(data_directory))


def test_gradients_of_a_compiled_module_are_kept_beside_those_of_others(
    data_directory: Path,
) -> None:
    """In a GAN's loop with a compiled discriminator, the sample has the gradients that reach it."""
    models: dict[str, Any] = {"g": layers(), "d": torch.compile(layers(), backend="eager")}
    scaler = ampmon.GradScaler("cpu", model=models, monitor=EVERY)
    optimizers = [SGD(each.parameters(), lr=0.0) for each in models.values()]
    for each in models.values():
        with torch.autocast("cpu", dtype=torch.float16):
            loss = each(batch()).float().square().mean()
        scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert scaler.monitor.errors == 0
    (sample,) = seen(data_directory)
    assert sample.elements[sample.names.index("d")] == 32 * 4


def test_a_parameter_that_is_parametrized_later_is_not_computed() -> None:
    """A weight that gets a parametrization after the scaler is computed as often as without the monitor."""
    computed = []
    for stock in (True, False):
        model, count = layers(), Counted()
        scaler: Any = torch.amp.GradScaler("cpu")
        if not stock:
            scaler = ampmon.GradScaler("cpu", model=model, monitor=EVERY)
        nn.utils.parametrize.register_parametrization(model[0], "weight", count, unsafe=True)
        optimizer = SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            scaler.scale(model(batch()).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        computed.append(count.calls)
    assert computed[0] == computed[1]


class Counted(nn.Module):
    """A parametrization that counts its calls."""

    calls = 0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return weight


def test_lazy_parameters_are_no_error(data_directory: Path) -> None:
    """A model with parameters that its first batch shapes is sampled from then on, without an error."""
    model = nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 1))
    scaler = ampmon.GradScaler("cpu", model=model, monitor=EVERY)
    model(batch())
    optimizer = SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(batch())
        scaler.scale(output.float().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    assert seen(data_directory)


def test_models_are_distinguished_and_wrappers_are_not_named(data_directory: Path) -> None:
    """Modules in a mapping are named by its keys, those in a wrapper by their own names, and a model by its class."""
    torch.manual_seed(0)
    models = {"generator": nn.DataParallel(layers()), "critic": nn.Linear(8, 4)}
    ampmon.GradScaler("cpu", model=models, monitor=EVERY)
    ampmon.GradScaler("cpu", model=nn.Linear(8, 4), monitor=EVERY)
    recorded = recording(data_directory)

    assert [(module.name, module.kind) for module in recorded.header().modules] == [
        ("generator", "DataParallel"),
        ("generator #1", "Sequential"),
        ("generator.0", "Linear"),
        ("generator.1", "ReLU"),
        ("generator.2", "Linear"),
        ("critic", "Linear"),
    ]
    assert [module.name for module in recorded.header("scaler-2").modules] == ["Linear"]


def test_a_module_that_joins_later_is_named(data_directory: Path) -> None:
    """A module added to the model later is hooked for the next sample and listed at the end of the header."""
    model = layers()
    optimizer = SGD(model.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", init_scale=1024.0, model=model, monitor=EVERY)
    for update in range(3):
        scaler.scale(model(batch()).mean()).backward()
        scaler.step(optimizer)
        if update == 0:
            model.append(nn.Tanh())
        scaler.update()
    recorded = recording(data_directory)

    assert [module.name for module in recorded.header().modules][-1] == "3"
    assert recorded.activations(0).names[-1] == "2"
    assert recorded.activations(1).names[-1] == "3"


def test_enqueued_values_give_what_is_measured_at_once(
    monkeypatch: pytest.MonkeyPatch, data_directory: Path
) -> None:
    """Values packed on a device and fetched together give the same record as the CPU's path."""
    run(layers(), batch(8), 3 * batch(16))
    monkeypatch.setattr(gathering, "is_host", lambda tensor: False)
    run(layers(), batch(8), 3 * batch(16))
    at_once, enqueued = seen(data_directory)

    assert alike(at_once, enqueued)
    assert at_once.names == enqueued.names
    assert at_once.forward == enqueued.forward
    assert at_once.statistics.sum_squares == pytest.approx(enqueued.statistics.sum_squares)


def test_nothing_seen_is_nothing_recorded(data_directory: Path) -> None:
    """An update whose forward pass does not use the model has no activations in its record."""
    model, other = layers(), layers()
    optimizer = SGD(other.parameters(), lr=0.0)
    scaler = ampmon.GradScaler("cpu", model=model, monitor=EVERY)
    scaler.scale(other(batch()).mean()).backward()
    scaler.step(optimizer)
    scaler.update()

    assert recording(data_directory).updates[0].activations is None
