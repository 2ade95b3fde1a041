"""The hooks of `Config(activations=...)` leave training, the model and its copies unchanged."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

import ampmon
import scripts
from ampmon.activations import gathering
from ampmon.errors import ConfigurationError
from probe.test_no_sync import NoSync
from recording import recording
from scaler.test_parity import bits


EVERY = ampmon.Config(activations=1)
ROWS = 16


class Block(nn.Module):
    """Dropout, an in-place layer, a shared layer and a checkpoint, all of which hooks might disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(16, 16)
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 16))
        self.drop = nn.Dropout(0.2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(self.shared(self.shared(inputs)))
        return hidden + checkpoint(self.inner, hidden, use_reentrant=False)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), Block(), nn.LayerNorm(16), nn.Linear(16, 4))


def step(
    model: nn.Module, scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Run one update of two micro-batches under fp16 autocast."""
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(ROWS, 8)).float().square().mean()
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss.detach()


def train(scaler: torch.amp.GradScaler, model: nn.Module) -> dict[str, Any]:
    """Return everything that ten updates leave behind, the first of them skipped."""
    optimizer = AdamW(model.parameters(), lr=1e-2)
    losses = [step(model, scaler, optimizer) for _ in range(10)]
    return {
        "losses": losses,
        "weights": [parameter.detach().clone() for parameter in model.parameters()],
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "random": torch.rand(4),
    }


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize("config", [EVERY, ampmon.Config(activations=3, sample="all")])
def test_training_is_the_same_bit_for_bit(config: ampmon.Config) -> None:
    """Training is bit for bit the stock scaler's, random numbers included, with overflows and checkpointing."""
    arguments = {"init_scale": 2.0**30, "growth_interval": 3}
    model = network()
    stock = train(torch.amp.GradScaler("cpu", **arguments), model)
    model = network()
    scaler = ampmon.GradScaler("cpu", **arguments, model=model, monitor=config)
    ours = train(scaler, model)

    assert bits(stock, ours)
    assert scaler.monitor is not None
    assert (scaler.monitor.errors, scaler.monitor.dropped) == (0, 0)
    assert scaler.monitor.skips > 0


def test_only_sampled_updates_are_hooked(data_directory: Path) -> None:
    """With activations=3 modules have hooks in every third iteration from the first on, and only those are sampled."""
    model = network()
    scaler = ampmon.GradScaler(
        "cpu", init_scale=1.0, model=model, monitor=ampmon.Config(activations=3)
    )
    optimizer = SGD(model.parameters(), lr=0.1)
    hooked = []
    for _ in range(7):
        hooked.append(hooks(model) > 0)
        step(model, scaler, optimizer)

    assert hooked == [True, False, False, True, False, False, True]
    sampled = [update.activations is not None for update in recording(data_directory).updates]
    assert sampled == hooked


def test_nothing_is_kept_alive() -> None:
    """Hooks keep no output, gradient or model alive."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    alive: list[weakref.ref[torch.Tensor]] = []

    def note(module: nn.Module, arguments: Any, output: torch.Tensor) -> None:
        alive.append(weakref.ref(output))
        output.register_hook(lambda gradient: alive.append(weakref.ref(gradient)))

    for module in model:
        module.register_forward_hook(note)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.ones(2, 8)).float().sum()
    scaler.scale(loss).backward()
    del loss

    assert len(alive) == 4
    assert [each() for each in alive] == [None] * 4
    gone = weakref.ref(model)
    assert hooks(model) == 2 * 2 + 1
    del model, module
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("updates", [0, 1, 20])
def test_a_scaler_that_is_gone_leaves_no_hooks(updates: int) -> None:
    """Deleting the scaler removes its hooks from the model at once, not when the garbage collector runs."""
    model = network()
    optimizer = SGD(model.parameters())
    scaler = ampmon.GradScaler("cpu", model=model, monitor=EVERY)
    gc.disable()
    try:
        for _ in range(updates):
            scaler.scale(model(torch.ones(2, 8)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert hooks(model) > 0
        del scaler
        assert hooks(model) == 0
        assert not any(each._post_accumulate_grad_hooks for each in model.parameters())
    finally:
        gc.enable()


def test_a_graph_that_outlives_its_update_changes_nothing(data_directory: Path) -> None:
    """A backward pass through the previous update's graph is not counted in the next update."""
    model = nn.Linear(8, 4)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    optimizer = SGD(model.parameters(), lr=0.0)
    with torch.autocast("cpu", dtype=torch.float16):
        old = model(torch.ones(ROWS, 8)).float().mean()
    for _ in range(2):
        scaler.scale(old).backward(retain_graph=True)
        scaler.step(optimizer)
        scaler.update()
    first, second = recording(data_directory).updates

    assert first.activations is not None
    assert second.activations is None


def test_copies_of_a_hooked_model_are_models_of_their_own(data_directory: Path) -> None:
    """A model can be pickled and copied while its modules are hooked; the copies run and report nothing."""
    model = network()
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    assert hooks(model) > 0
    packed = pickle.dumps(model)
    copies = [copy.deepcopy(model), pickle.loads(packed)]
    with torch.autocast("cpu", dtype=torch.float16):
        for each in copies:
            each(torch.randn(ROWS, 8)).float().mean().backward()
    step(model, scaler, SGD(model.parameters(), lr=0.1))

    assert b"ampmon" not in packed
    elements = recording(data_directory).activations(0).elements
    assert elements[0] == 2 * ROWS * 16


def test_what_a_module_returns_cannot_break_training(data_directory: Path) -> None:
    """Outputs that raise when inspected, or hold no numbers, do not stop training; each error is counted."""

    class Spiteful(dict[str, torch.Tensor]):
        def values(self) -> Any:
            raise RuntimeError("not yours")

    class Outputs(nn.Module):
        def forward(self, inputs: torch.Tensor) -> Any:
            return Spiteful(inputs=inputs), torch.ones(2).bool(), inputs[:0], "a word", None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.outputs = nn.Linear(8, 4), Outputs()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.outputs(self.layer(inputs))[0]["inputs"]

    model = Model()
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    with pytest.warns(ampmon.AmpmonWarning, match="measuring activations failed"):
        step(model, scaler, SGD(model.parameters(), lr=0.1))

    assert scaler.monitor is not None
    assert scaler.monitor.errors == 2  # in two micro-batches
    assert recording(data_directory).activations(0).names == ["layer"]


def test_a_hook_may_be_removed_while_its_module_runs(data_directory: Path) -> None:
    """A forward pass beside a thread whose update ends goes on when the hooks of that update are removed."""
    model = nn.Linear(8, 4)
    scalers: list[Any] = []

    def remove(*_: object) -> None:
        for scaler in scalers:
            scaler.monitor._activations.drop()

    model.register_forward_hook(remove)  # runs before the hook of the scaler
    scalers.append(ampmon.GradScaler("cpu", init_scale=4.0, model=model, monitor=EVERY))
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        step(model, scalers[0], optimizer)
    recorded = recording(data_directory)
    assert len(recorded.updates) == 2
    assert recorded.events("error") == []


def test_what_it_takes_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time spent in hooks is in the monitor's overhead."""
    model = network()
    quiet, busy = (
        ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=ampmon.Config(every=200)),
        ampmon.GradScaler(
            "cpu",
            init_scale=1.0,
            model=model,
            monitor=ampmon.Config(every=200, activations=1, sample="all"),
        ),
    )
    assert quiet.monitor is not None
    assert busy.monitor is not None
    # Each reading of the clock takes 1 us, and in a hook 1 ms.
    slow = SimpleNamespace(perf_counter_ns=itertools.count(0, 1_000_000).__next__)
    monkeypatch.setattr("ampmon.activations.hooks.time", slow)
    for scaler in (quiet, busy):
        scaler.monitor._account.clock = itertools.count(0, 1000).__next__
        for _ in range(5):
            step(model, scaler, SGD(model.parameters(), lr=0.0))

    assert busy.monitor.overhead > 2 * quiet.monitor.overhead


def test_activations_want_a_model() -> None:
    """Without `model=` the constructor and `watch` raise an error with the fix, and leave the scaler unchanged."""
    words = r"activations=10 needs the modules: write model=model, monitor=ampmon.Config\(activations=10\)"
    config = ampmon.Config(activations=10)
    stock = torch.amp.GradScaler("cpu")
    with pytest.raises(ConfigurationError, match=words):
        ampmon.GradScaler("cpu", monitor=config)
    with pytest.raises(ConfigurationError, match=words):
        ampmon.watch(stock, monitor=config)

    assert type(stock) is torch.amp.GradScaler


def test_a_copy_of_the_scaler_goes_on_without_them(data_directory: Path) -> None:
    """An unpickled scaler has no model and records its updates without activations."""
    model = network()
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    again = pickle.loads(pickle.dumps(scaler))
    step(model, again, SGD(model.parameters(), lr=0.1))
    recorded = recording(data_directory)

    assert [update.activations for update in recorded.of("scaler-2")] == [None]


def test_models_may_be_given_by_an_iterator(data_directory: Path) -> None:
    """Models given by an iterator keep the names of their modules."""
    models = [nn.Linear(8, 8), nn.Linear(8, 4)]
    ampmon.GradScaler("cpu", model=iter(models), monitor=EVERY)
    recorded = recording(data_directory)

    assert [module.name for module in recorded.header().modules] == ["0", "1"]


@pytest.fixture
def compiler() -> Iterator[Any]:
    """torch.compile's front end, with nothing compiled."""
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    dynamo.utils.counters.clear()
    yield dynamo
    dynamo.reset()


def frames(dynamo: Any) -> int:
    """Return the number of compiled frames."""
    return int(dynamo.utils.counters["frames"]["ok"])


def compile_with_and_without_hooks() -> None:
    """Print the numbers of compiled frames, without activation hooks and with them."""
    import torch._dynamo as dynamo

    for config in (ampmon.Config(), EVERY):
        dynamo.reset()
        dynamo.utils.counters.clear()
        model = torch.compile(network(), backend="eager")
        scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=config)
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            step(model, scaler, optimizer)
        print(frames(dynamo))


def test_a_compiled_model_is_measured_from_outside(data_directory: Path) -> None:
    """A compiled model is compiled as often as without hooks; its output is measured, and its inside is left out."""
    # In a process of its own: what other tests leave to the compiler may cost one more compilation.
    name = compile_with_and_without_hooks.__name__
    script = f"import sys\nsys.path[:0] = {sys.path}\nfrom scaler.test_activation_hooks import {name}\n{name}()"
    done = scripts.run("-c", script)
    assert done.stdout.split() == ["1", "1"]
    assert recording(data_directory).activations(3, "scaler-2").names == ["OptimizedModule"]


@pytest.mark.filterwarnings("default")
def test_a_module_compiled_in_place_is_left_out(data_directory: Path, compiler: Any) -> None:
    """A module compiled in place, and every module in it, has no hooks, and the header says so."""
    model = nn.Sequential(nn.Linear(8, 16), Block(), nn.Linear(16, 4))
    model[1].compile(backend="eager")
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, scaler, optimizer)
    recorded = recording(data_directory)

    assert frames(compiler) == 1
    assert recorded.activations(2).names == ["0", "2"]
    left_out = {module.name: module.left_out for module in recorded.header().modules}
    assert left_out == {"Sequential": None, "0": None, "1": "compiled", "2": None}


@pytest.mark.filterwarnings("default")
def test_a_model_that_is_compiled_elsewhere_is_not_cut(compiler: Any) -> None:
    """If the plain model is given and its compiled form called, hooks cost one more compilation and no graph break."""
    called: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*given: Any) -> Any:
            called[-1] += 1
            return graph(*given)

        return run

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    compiled = torch.compile(model, backend=backend)
    config = ampmon.Config(activations=2)
    scaler = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=config)
    optimizer = SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        called.append(0)
        step(compiled, scaler, optimizer)

    assert called == [2] * 6  # one graph, of two micro-batches
    if torch.__version__ >= (2, 5):  # earlier compilers take each new hook for another one
        assert frames(compiler) <= 2
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0


def test_no_value_is_read_where_work_is_enqueued(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the path for devices an iteration runs no operator that waits for a value."""
    model = network()
    watched = ampmon.GradScaler("cpu", init_scale=1.0, model=model, monitor=EVERY)
    assert watched.monitor is not None
    with NoSync():
        with monkeypatch.context() as on_device, torch.autocast("cpu", dtype=torch.float16):
            on_device.setattr(gathering, "is_host", lambda tensor: False)
            loss = model(torch.randn(ROWS, 8)).float().square().mean()
            watched.scale(loss).backward()
        assert watched.monitor.errors == 0
        with pytest.warns(ampmon.AmpmonWarning, match="waits for the device"):
            model(torch.randn(ROWS, 8))


@pytest.mark.gpu
def test_a_gpu_is_never_waited_for(data_directory: Path) -> None:
    """On CUDA a sampled iteration of the fused route never syncs, and measures all elements."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
    optimizer = AdamW(model.parameters(), lr=1e-3, fused=True)
    config = ampmon.Config(activations=1, every=1)
    scaler = ampmon.GradScaler("cuda", init_scale=1024.0, model=model, monitor=config)
    inputs = torch.randn(ROWS, 8, device="cuda")
    for update in range(6):
        torch.cuda.set_sync_debug_mode("error" if update > 2 else "default")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")
    activations = recording(data_directory).activations(5)

    assert activations.names == ["0", "1", "2"]
    assert activations.elements == [ROWS * 16, ROWS * 16, ROWS * 4]
    assert activations.statistics.looked.tolist() == activations.elements
