"""Gradients measured in the pass that unscales them; probe/test_kernels.py runs this under Triton's interpreter."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW, Optimizer

import ampmon
from ampmon import wire
from ampmon.activations import gathering
from ampmon.client import measurer
from ampmon.probe.device import DeviceProbe
from ampmon.probe.gpu import kernels, loading
from ampmon.probe.gpu.table import Tables
from ampmon.probe.timing import DeviceTimer
from probe.scripted import Device
from recording import recording
from scaler.test_gradient_kinds import step, with_gradients
from scaler.test_parity import ROUTES, Case, bits, train


OVERFLOWING = [Case({"growth_interval": 2}, route, 2, True) for route in ROUTES]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that ran, in order."""
    ran: list[str] = []
    cache, counter = kernels.Cache, kernels.Counter
    methods = (cache, "statistics"), (cache, "unscale"), (counter, "__call__")
    for owner, method in methods:
        called = getattr(owner, method)

        def run(*given: Any, name: str = method, called: Any = called) -> Any:
            ran.append({"__call__": "culprits"}.get(name, name))
            return called(*given)

        monkeypatch.setattr(owner, method, run)
    return ran


def test_a_sampled_update_reads_the_gradients_once(data_directory: Path, passes: list[str]) -> None:
    """A sampled update runs only the kernel that unscales, another one only the kernel that searches for culprits."""
    parameters = with_gradients(torch.ones(5), torch.ones(3, 4).t())
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=3))
    optimizer = SGD(parameters, lr=0.0)
    for _ in range(4):
        step(scaler, optimizer)
    assert passes == ["unscale", "culprits", "culprits", "unscale"]
    recorded = recording(data_directory)
    assert recorded.statistics(0).looked.tolist() == [5, 12]
    assert [parameter.grad.flatten()[0].item() for parameter in parameters] == [8.0**-4] * 2


class Patient(torch.amp.GradScaler):
    """A user's scaler that overrides unscaling."""

    def _unscale_grads_(self, *args: Any, **kwargs: Any) -> Any:
        return super()._unscale_grads_(*args, **kwargs)


def test_a_scaler_that_unscales_otherwise_does_so(data_directory: Path, passes: list[str]) -> None:
    """A subclass's own `_unscale_grads_` is called, and the gradients are measured before it."""
    scaler = ampmon.watch(Patient("cpu", init_scale=8.0), monitor=ampmon.Config(every=1))
    step(scaler, SGD(with_gradients(torch.ones(5)), lr=0.0))
    assert passes == ["statistics"]
    assert recording(data_directory).statistics(0).amax.tolist() == [1.0]


@pytest.mark.parametrize("odd", ["sparse", "float64", "bfloat16", "overlapping", "shared"])
def test_what_a_kernel_cannot_unscale_torch_does(
    data_directory: Path, passes: list[str], odd: str
) -> None:
    """Sparse, fp64, bf16, overlapping and shared gradients end as with the stock scaler, errors included."""
    ended: list[Any] = []
    for scaler in (
        torch.amp.GradScaler("cpu", init_scale=8.0),
        ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=1)),
    ):
        gradient = {
            "sparse": torch.eye(3).to_sparse(),
            "float64": torch.ones(3, dtype=torch.float64),
            "bfloat16": torch.ones(3, dtype=torch.bfloat16),
            "overlapping": torch.ones(1).expand(4),
            "shared": torch.ones(4),
        }[odd]
        parameters = with_gradients(gradient, *([gradient] if odd == "shared" else []))
        try:
            step(scaler, SGD(parameters, lr=1.0))
        except RuntimeError as error:
            ended.append(str(error))
        else:
            ended.append([parameter.detach().to_dense().double() for parameter in parameters])
    assert bits(ended[0], ended[1]) if isinstance(ended[0], list) else ended[0] == ended[1]
    if isinstance(ended[0], list):
        assert recording(data_directory).statistics(0).looked.sum() > 0


def test_a_kernel_that_fails_is_replaced_at_once(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a kernel does not start, torch unscales, one warning is given, and plain torch measures from then on."""

    def refuse(*_: Any, **__: Any) -> None:
        raise kernels.KernelError("no compiler here")

    monkeypatch.setattr(kernels, "_launch", refuse)
    config = ampmon.Config(every=1)
    with pytest.warns(ampmon.AmpmonWarning, match="no compiler here") as warned:
        ended = [
            train(make("cpu", growth_interval=2, **more), OVERFLOWING[0])
            for make, more in (
                (torch.amp.GradScaler, {}),
                (ampmon.GradScaler, {"monitor": config}),
            )
        ]
    assert bits(*ended)
    assert len(warned) == 1
    updates = recording(data_directory).updates
    assert all(update.gradients is not None for update in updates[1:])


def test_activations_are_measured_by_the_kernel(
    data_directory: Path, passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel measures gradients of module outputs in place: plain torch takes 25 bytes an element."""
    monkeypatch.setattr(gathering, "is_host", lambda _: False)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = SGD(model.parameters(), lr=0.0)
    config = ampmon.Config(every=10**6, activations=1)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, model=model, monitor=config)
    with torch.autocast("cpu", torch.float16):
        loss = model(torch.ones(5, 4)).float().sum()
    scaler.scale(loss).backward()
    assert passes == ["statistics", "statistics"]
    scaler.step(optimizer)
    scaler.update()
    activations = recording(data_directory).activations(0)
    assert activations.statistics.looked.tolist() == [15, 10]
    assert activations.statistics.amax.tolist()[1] == 8.0


def test_training_goes_on_while_kernels_are_compiled(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While kernels compile, torch unscales and nothing is measured or reported; later updates are measured."""
    launch = kernels._launch

    def compiling(*_: Any, **__: Any) -> None:
        raise loading.NotReady

    parameters = with_gradients(torch.ones(5), torch.ones(3))
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=2))
    optimizer = SGD(parameters, lr=0.0)
    for update in range(4):
        monkeypatch.setattr(kernels, "_launch", compiling if update < 2 else launch)
        parameters[0].grad.fill_(8.0)
        if update in (1, 3):
            parameters[0].grad[1] = float("inf")
        step(scaler, optimizer)
    recorded = recording(data_directory)
    measured = [update.gradients is not None for update in recorded.updates]
    assert measured == [False, False, True, False]
    assert recorded.statistics(2).looked.tolist() == [5, 3]
    culprits = [update.optimizers[0].culprits for update in recorded.updates]
    assert culprits == [(), (), (), (wire.Culprit(0, 1, 0),)]
    assert not recorded.events("error")


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        kernels.KernelError("'measure' did not start: Triton Error [CUDA]: out of memory"),
    ],
    ids=["torch", "triton"],
)
def test_kernels_go_on_after_memory_was_short(error: Exception) -> None:
    """After a failure for lack of memory, which is reported, the next pass over gradients uses a kernel again."""
    reports: list[Exception] = []
    probe = DeviceProbe(lambda _, error: reports.append(error))
    arguments = [torch.ones(3)], torch.zeros(1), torch.tensor([0.5]), lambda: None

    class Short:
        def unscale(self, *_: Any) -> None:
            raise error

    probe._kernels, usable = Short(), probe._kernels
    assert probe.unscale(*arguments) is None
    assert reports == [error]
    assert probe.fuses(torch.device("cpu"))
    probe._kernels = usable
    assert probe.unscale(*arguments) is not None
    assert arguments[0][0].tolist() == [0.5] * 3


def test_autograd_gets_what_torch_gives_it() -> None:
    """A gradient has the same autograd version after the kernel unscales it as after torch does."""
    versions = []
    for scaler in (torch.amp.GradScaler("cpu"), ampmon.GradScaler("cpu")):
        (parameter,) = with_gradients(torch.ones(4))
        scaler.scale(torch.ones(()))
        scaler.unscale_(SGD([parameter], lr=0.1))
        versions.append(parameter.grad._version)
    assert versions[0] == versions[1]


def test_samples_go_on_where_no_baseline_can_be_timed(data_directory: Path) -> None:
    """If torch's own unscaling cannot be timed, as on a CPU, three updates are left unsampled for it, and no more."""
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(budget=1.0))
    # Each reading of the clock takes 1 us, so the slow first kernels do not make samples rarer.
    scaler.monitor._account.clock = itertools.count(0, 1000).__next__
    optimizer = SGD(with_gradients(torch.ones(5)), lr=0.0)
    for _ in range(measurer.BASELINES + 2):
        step(scaler, optimizer)
    sampled = [update.gradients is not None for update in recording(data_directory).updates]
    assert sampled == [True, *[False] * measurer.BASELINES, True]


@pytest.mark.parametrize("every", [1, 10**6])
def test_culprits_are_counted_without_asking_the_device(
    data_directory: Path, passes: list[str], every: int
) -> None:
    """Sampled or not, the culprits of a skip are named in backward order, with their numbers of inf and NaN."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer: Optimizer = AdamW(model.parameters(), fused=True)
    scaler = ampmon.GradScaler(
        "cpu", init_scale=4.0, model=model, monitor=ampmon.Config(every=every)
    )
    for update in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        if update == 3:
            model[0].weight.grad[0] = float("inf")
            model[1].bias.grad[0] = float("nan")
        scaler.step(optimizer)
        scaler.update()
    recorded = recording(data_directory)
    (taken,) = recorded.updates[3].optimizers
    assert recorded.names(taken) == ["1.bias", "0.weight"]
    assert [(culprit.inf, culprit.nan) for culprit in taken.culprits] == [(0, 1), (4, 0)]
    assert (passes[-1] == "culprits") == (every > 1)


@pytest.mark.parametrize("case", OVERFLOWING, ids=lambda case: case.route)
def test_training_ends_bit_for_bit_the_same(case: Case, passes: list[str]) -> None:
    """On every route two optimizers, one of which overflows, end as with the stock scaler, and no gradient is kept."""
    config = ampmon.Config(every=2)
    scaler = ampmon.GradScaler("cpu", growth_interval=2, monitor=config)
    stock = torch.amp.GradScaler("cpu", growth_interval=2)
    assert bits(train(scaler, case, updates=5), train(stock, case, updates=5))
    assert "unscale" in passes
    assert scaler.monitor is not None
    assert scaler.monitor.errors == 0
    assert scaler.monitor._measurer.set_aside is None


def test_a_pass_counts_over_torchs_own(
    data_directory: Path, passes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three updates in a row are not sampled, to time torch's own unscaling, which then does not count as cost."""
    # Milliseconds between two events, so large that the clock does not matter.
    device = Device(tick=1e9)
    timer = functools.partial(DeviceTimer, event=device.event, timed=lambda _: True)
    monkeypatch.setattr(measurer, "DeviceTimer", timer)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(budget=1.0))
    # Each reading of the clock takes 1 us, so the slow first kernels do not make samples rarer.
    scaler.monitor._account.clock = itertools.count(0, 1000).__next__
    optimizer = SGD(with_gradients(torch.ones(5)), lr=0.0)
    for _ in range(5):
        step(scaler, optimizer)
    assert passes == ["unscale", "culprits", "culprits", "culprits", "unscale"]
    costs = [update.cost for update in recording(data_directory).updates]
    assert costs[0] > 1e12
    assert max(costs[1:]) < 1e11


@pytest.mark.parametrize(("dtype", "kernel"), [("float32", "unscale"), ("float64", "statistics")])
def test_device_time_begins_at_the_launch(
    data_directory: Path,
    passes: list[str],
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    kernel: str,
) -> None:
    """The host's time for making tables is not device time, whether or not the pass unscales."""
    device = Device(tick=1.0)
    timer = functools.partial(DeviceTimer, event=device.event, timed=lambda _: True)
    monkeypatch.setattr(measurer, "DeviceTimer", timer)
    tables = Tables.of

    def slowly(*arguments: Any) -> Any:
        device.now += 1e9
        return tables(*arguments)

    monkeypatch.setattr(Tables, "of", slowly)
    scaler = ampmon.GradScaler("cpu", init_scale=8.0, monitor=ampmon.Config(every=1))
    # Each reading of the clock takes 1 us.
    scaler.monitor._account.clock = itertools.count(0, 1000).__next__
    gradients = torch.ones(5), torch.ones(5, dtype=getattr(torch, dtype))
    step(scaler, SGD(with_gradients(*gradients), lr=0.0))
    assert kernel in passes
    (update,) = recording(data_directory).updates
    assert 1e3 <= update.cost < 1e6
