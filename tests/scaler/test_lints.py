"""A lint reports a known mistake in a training loop once, as an event and a warning, and never in a right loop."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

import ampmon
from ampmon import wire
from ampmon.client import current_run
from ampmon.client.gear import LOOK_EVERY
from ampmon.lints import linter
from ampmon.lints.losses import Losses
from ampmon.lints.optimizers import look, parameters_of
from ampmon.lints.passes import GradientWatcher, watchable
from ampmon.lints.reporter import LINTS, LintReporter
from older_torch import SEES_PRECISION, named
from probe.test_no_sync import NoSync
from recording import recording, recordings


pytestmark = pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")


def lints_of(directory: Path) -> dict[str, wire.Event]:
    """Return the lints of the only recording by rule; assert that each occurs once."""
    events = recording(directory).events("lint")
    rules = [event.detail["rule"] for event in events]
    assert len(set(rules)) == len(rules)
    return dict(zip(rules, events, strict=True))


class Loop:
    """A small regression in fp16 autocast, to be trained rightly or wrongly."""

    def __init__(
        self, make: Callable[..., Any] = SGD, scale: float = 1024.0, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.optimizer = make(named(self.model.named_parameters()), lr=0.01, **options)
        self.scaler = ampmon.GradScaler("cpu", init_scale=scale, model=self.model)

    def loss(self, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        inputs = torch.randn(16, 8)
        with torch.autocast("cpu", dtype):
            outputs = self.model(inputs)
        loss: torch.Tensor = (outputs.float() - inputs.sum(1, keepdim=True)).square().mean()
        return loss

    def backward(self) -> None:
        self.scaler.scale(self.loss()).backward()

    def spoil(self, value: float = float("inf")) -> None:
        self.gradients()[0].view(-1)[0] = value

    def gradients(self) -> list[torch.Tensor]:
        return [each.grad for each in self.model.parameters() if each.grad is not None]

    def finish(self, *, clear: bool = True) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if clear:
            self.optimizer.zero_grad()


@pytest.mark.parametrize("to_none", [True, False])
def test_a_right_loop_gets_no_lint(data_directory: Path, to_none: bool) -> None:
    """Accumulation, clipping of unscaled gradients, a scheduler that waits for skips, and overflows get no lint."""
    loop = Loop(SGD, momentum=0.9)
    scheduler = LambdaLR(loop.optimizer, lambda update: 0.99**update)
    for update in range(20):
        for _ in range(3):
            loop.backward()
        if update in (0, 1, 7):
            loop.spoil()
        loop.scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
        before = loop.scaler.get_scale()
        loop.finish(clear=False)
        loop.optimizer.zero_grad(set_to_none=to_none)
        if loop.scaler.get_scale() >= before:
            scheduler.step()
    assert lints_of(data_directory) == {}


def test_what_is_stepped_may_be_no_optimizer(data_directory: Path) -> None:
    """An object with groups and a `step()`, such as fastai's callback, counts as an optimizer without a state."""

    class Callback:
        def __init__(self, optimizer: SGD) -> None:
            self.param_groups, self.step = optimizer.param_groups, optimizer.step

    loop = Loop()
    optimizer, loop.optimizer = loop.optimizer, Callback(loop.optimizer)
    for update in range(12):
        loop.backward()
        if 2 < update < 6:
            loop.spoil(float("nan"))
        loop.finish(clear=False)
        optimizer.zero_grad()
    assert lints_of(data_directory) == {}
    assert [each.optimizers[0].skipped for each in recording(data_directory).updates].count(
        True
    ) == 3
    assert recording(data_directory).events("error") == []


def test_gradients_of_a_turn_that_is_another_s_are_no_lint(data_directory: Path) -> None:
    """Two models that train in turn, gather gradients in each other's turn and clear their own, get no lint."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = [SGD(first.parameters(), lr=0.01), SGD(second.parameters(), lr=0.01)]
    scaler = ampmon.GradScaler("cpu", init_scale=16.0)
    for turn in range(30):
        optimizer = optimizers[turn % 2]
        optimizer.zero_grad()
        scaler.scale(second(first(torch.randn(3, 4))).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert lints_of(data_directory) == {}


@pytest.mark.parametrize("spoilt", [True, False])
def test_fused_sgd_whose_first_step_overflowed(data_directory: Path, spoilt: bool) -> None:
    """Fused SGD with momentum gets a critical lint if its first step overflowed, and none otherwise."""
    loop = Loop(SGD, momentum=0.9, fused=True)
    for update in range(4):
        loop.backward()
        if spoilt and not update:
            loop.spoil()
        loop.finish()
    lints = lints_of(data_directory)
    assert set(lints) == ({"fused_sgd"} if spoilt else set())
    if spoilt:
        assert lints["fused_sgd"].detail["severity"] == "critical"
        assert lints["fused_sgd"].detail["stop"]


@SEES_PRECISION
def test_a_scaler_under_bfloat16(data_directory: Path) -> None:
    """An enabled scaler whose first loss was computed in bfloat16 gets a lint."""
    loop = Loop()
    loop.scaler.scale(loop.loss(torch.bfloat16)).backward()
    loop.finish()
    assert set(lints_of(data_directory)) == {"scaler_under_bf16"}


@SEES_PRECISION
def test_fp16_with_a_disabled_scaler(data_directory: Path) -> None:
    """A disabled scaler whose first loss was computed in fp16 gets a lint with the call that enables it."""
    loop = Loop()
    net = loop.model
    scaler = ampmon.GradScaler("cpu", enabled=False, model=net)
    with pytest.warns(ampmon.AmpmonWarning) as warned:
        scaler.scale(loop.loss()).backward()
    scaler.scale(loop.loss()).backward()
    (lint,) = lints_of(data_directory).values()
    assert lint.detail["rule"] == "fp16_without_scaler"
    name = "net" if sys.version_info >= (3, 11) else "model"  # before, frames know no columns
    assert lint.detail["fix"] == (
        f'scaler = ampmon.GradScaler("cpu", enabled=True, model={name})  # enabled was False'
    )
    assert len(warned) == 1


@SEES_PRECISION
@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_fp16_parameters_with_a_disabled_scaler(data_directory: Path) -> None:
    """A disabled scaler is not to be enabled while the weights are fp16: torch would refuse to unscale them."""
    loop = Loop()
    loop.model.half()
    ampmon.GradScaler("cpu", enabled=False).scale(loop.loss()).backward()
    (lint,) = lints_of(data_directory).values()
    assert lint.detail["rule"] == "fp16_parameters"
    assert lint.detail["title"].startswith("4 parameters")


@SEES_PRECISION
@pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")
def test_fp16_inputs_with_gradients_are_no_parameters(data_directory: Path) -> None:
    """If inputs in fp16 take gradients, as in adversarial training, the weights are not called fp16."""
    inputs = torch.randn(3, 4, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        loss = nn.Linear(4, 2)(inputs).float().square().mean()
    ampmon.GradScaler("cpu", enabled=False).scale(loss).backward()
    assert set(lints_of(data_directory)) == {"fp16_without_scaler"}


@SEES_PRECISION
@pytest.mark.skipif(torch.cuda.is_available(), reason="the scaler is enabled where there is CUDA")
@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
def test_a_scaler_for_cuda_on_a_cpu_gets_one_lint() -> None:
    """A scaler that torch disabled for lack of CUDA gets one line of advice: the device."""
    loop = Loop()
    scaler = ampmon.GradScaler()
    with pytest.warns(ampmon.AmpmonWarning) as warned:
        scaler.scale(loop.loss()).backward()
    (words,) = {str(each.message) for each in warned}
    assert words.endswith('Write:\nscaler = ampmon.GradScaler("cpu")  # device was "cuda"')


def test_bfloat16_with_a_disabled_scaler_is_right(data_directory: Path) -> None:
    """A disabled scaler under bfloat16 gets no lint."""
    loop = Loop()
    scaler = ampmon.GradScaler("cpu", enabled=False)
    scaler.scale(loop.loss(torch.bfloat16)).backward()
    assert lints_of(data_directory) == {}


@SEES_PRECISION
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_losses_logged_without_a_scaler(data_directory: Path, dtype: torch.dtype) -> None:
    """fp16 losses that are logged without a scaler get a lint; fp32 losses do not."""
    ampmon.init()
    model = nn.Linear(4, 4)
    for _ in range(4):
        with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float16):
            loss = model(torch.ones(2, 4)).float().sum()
        loss.backward()
        ampmon.log({"loss": loss})
    assert set(lints_of(data_directory)) == (
        {"fp16_without_scaler"} if dtype is torch.float16 else set()
    )


def test_fp16_parameters(data_directory: Path) -> None:
    """fp16 weights get a lint with their names at an optimizer's first step; frozen ones do not."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model.half()
    scaler = ampmon.GradScaler("cpu", init_scale=16.0, model=model)
    model[1].requires_grad_(requires_grad=False)
    model[2].float()
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler.scale(model[2](model[0](torch.ones(1, 4).half()).float()).sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)
    lint = lints_of(data_directory)["fp16_parameters"]
    assert lint.detail["parameters"] == ["0.weight", "0.bias"]
    assert lint.detail["title"] == "2 parameters are fp16"


def test_fp16_parameters_are_cast_before_the_optimizer_is_made() -> None:
    """Adagrad keeps the dtype that weights have when it is made, so the fix says to cast them before."""
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.Adagrad(model.parameters())
    model.float()
    assert optimizer.state[model.weight]["sum"].dtype is torch.float16
    assert LINTS["fp16_parameters"].fix.startswith(
        "model.float()  # before you create the optimizer"
    )


@pytest.mark.parametrize(
    ("how", "overflows", "most"),
    [("norm", 0, 1.0), ("norm", 0, 100.0), ("norm", 10, 1.0), ("value", 0, 0.5)],
)
def test_clipping_of_scaled_gradients(
    data_directory: Path, how: str, overflows: int, most: float
) -> None:
    """Gradients of constant size below 1 % of the scale get the clipping lint, even after a long scale search."""
    loop = Loop(scale=2.0 ** (16 + overflows))
    for update in range(12 + overflows):
        loop.backward()
        if update < overflows:
            loop.spoil()
        if how == "norm":
            nn.utils.clip_grad_norm_(loop.model.parameters(), most)
        else:
            nn.utils.clip_grad_value_(loop.model.parameters(), most)
        loop.finish()
    assert set(lints_of(data_directory)) == {"clip_before_unscale"}


@pytest.mark.parametrize("how", ["norm", "value"])
def test_clipping_is_cured_by_the_function_that_clips(data_directory: Path, how: str) -> None:
    """A constant norm is that of `clip_grad_norm_`, a constant largest element that of `clip_grad_value_`."""
    loop = Loop()
    clip = getattr(nn.utils, f"clip_grad_{how}_")
    for _ in range(12):
        loop.backward()
        for gradient in loop.gradients():
            gradient.copy_(torch.rand_like(gradient)).view(-1)[0] = 5.0
        clip(loop.model.parameters(), 1.0)
        loop.finish()
    (lint,) = lints_of(data_directory).values()
    assert f"\ntorch.nn.utils.clip_grad_{how}_(model.parameters(), " in lint.detail["fix"]


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize(("scale", "found"), [(65536.0, {"unscaled_twice"}), (4.0, set())])
def test_gradients_that_the_loop_divides_by_the_scale(
    data_directory: Path, passes: int, scale: float, found: set[str]
) -> None:
    """A loop that divides by `get_scale()` and then steps gets the lint. A small divisor may be that of an average."""
    loop = Loop(scale=scale)
    for _ in range(12):
        for _ in range(passes):
            loop.backward()
        for gradient in loop.gradients():
            gradient.div_(loop.scaler.get_scale())
        nn.utils.clip_grad_norm_(loop.model.parameters(), 100.0)
        loop.finish()
    assert set(lints_of(data_directory)) == found


def test_clipping_beside_an_empty_parameter(data_directory: Path) -> None:
    """A parameter without elements, whose largest gradient element does not exist, ends no check."""
    loop = Loop()
    empty = loop.model.empty = nn.Parameter(torch.empty(0))
    loop.optimizer = SGD(loop.model.parameters(), lr=0.01)
    for _ in range(12):
        loop.scaler.scale(loop.loss() + empty.sum()).backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.finish()
    assert set(lints_of(data_directory)) == {"clip_before_unscale"}


def test_gradients_averaged_by_hand_are_no_clipping(data_directory: Path) -> None:
    """Dividing gradients before they are unscaled, as in averaging over ranks, gets no lint."""
    loop = Loop()
    for _ in range(12):
        loop.backward()
        for gradient in loop.gradients():
            gradient.div_(2)
        loop.finish()
    assert lints_of(data_directory) == {}


def test_unscale_in_the_middle_of_accumulation(data_directory: Path) -> None:
    """A backward pass between `unscale_` and `step` gets a lint: it adds scaled gradients to unscaled ones."""
    loop = Loop(Adam)
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.backward()
    loop.finish()
    assert set(lints_of(data_directory)) == {"unscale_in_accumulation"}


def test_steps_left_out_for_overflows_are_right(data_directory: Path) -> None:
    """A loop that steps only if the gradient's norm is finite gets no lint while the first scale falls."""
    loop = Loop(scale=2.0**40)
    for _ in range(40):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        if torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0).isfinite():
            loop.scaler.step(loop.optimizer)
        loop.scaler.update()
        loop.optimizer.zero_grad()
    assert 8 < len(recording(data_directory).events("update_without_step")) < 40
    assert lints_of(data_directory) == {}


@pytest.mark.parametrize("checks", [True, False])
def test_an_optimizer_that_the_loop_steps_itself(
    data_directory: Path, recwarn: pytest.WarningsRecorder, *, checks: bool
) -> None:
    """A loop that steps the optimizer itself gets a notice and no warning, or none if it checks at an overflow."""
    loop = Loop(scale=2.0**30 if checks else 1024.0)
    for _ in range(40):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        if all(each.isfinite().all() for each in loop.gradients()):
            loop.optimizer.step()
        loop.scaler.update()
        loop.optimizer.zero_grad()
    assert 1 < loop.scaler.get_scale() < 2.0**20
    found = [
        (event.detail["severity"], event.detail["title"])
        for event in lints_of(data_directory).values()
    ]
    expected = (
        "SGD has stepped without the scaler in 8 updates, although its gradients were unscaled"
    )
    assert found == ([] if checks else [("notice", expected)])
    assert not [each for each in recwarn if issubclass(each.category, ampmon.AmpmonWarning)]


def test_a_missing_step_shows_although_weights_are_loaded(data_directory: Path) -> None:
    """A loop that never steps the optimizer gets a lint, whatever else writes into its weights now and then."""
    loop = Loop()
    for update in range(12):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        loop.scaler.update()
        loop.optimizer.zero_grad()
        if update % 3 == 0:
            loop.model.load_state_dict(loop.model.state_dict())
    (lint,) = lints_of(data_directory).values()
    assert lint.detail["title"] == (
        "SGD has not stepped in 8 updates, although its gradients were unscaled"
    )


def test_unscale_at_each_micro_batch(data_directory: Path) -> None:
    """The second `unscale_` of a batch raises torch's error, and a lint gives the reason."""
    loop = Loop()
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.backward()
    with pytest.raises(RuntimeError, match="already been called"):
        loop.scaler.unscale_(loop.optimizer)
    assert set(lints_of(data_directory)) == {"unscale_in_accumulation"}


def test_the_scale_changed_within_a_batch(data_directory: Path) -> None:
    """`update(new_scale)` between two backward passes of one step gets a lint; between iterations it gets none."""
    loop = Loop()
    for update in range(4):
        loop.backward()
        if update == 2:
            loop.scaler.update(512.0)
        loop.backward()
        loop.finish()
        loop.scaler.update(1024.0)
    assert set(lints_of(data_directory)) == {"scale_within_batch"}


def test_the_backward_pass_under_autocast(data_directory: Path) -> None:
    """A backward pass under autocast gets a lint."""
    loop = Loop()
    for _ in range(2):
        with torch.autocast("cpu", torch.float16):
            loop.backward()
        loop.finish()
    assert set(lints_of(data_directory)) == {"backward_under_autocast"}


@pytest.mark.parametrize("tensor", [True, False])
def test_a_scheduler_that_steps_on_skips(data_directory: Path, tensor: bool) -> None:
    """Each update after a skip records that a scheduler has changed the rate."""
    loop = Loop()
    if tensor:
        loop.optimizer = SGD(loop.model.parameters(), lr=torch.tensor(0.01), foreach=True)
    scheduler = LambdaLR(loop.optimizer, lambda update: 0.99**update)
    for update in range(20):
        loop.backward()
        if update % 2:
            loop.spoil()
        loop.finish()
        scheduler.step()
    (recorded,) = recordings(data_directory)
    scheduled = [update.ordinal for update in recorded.updates if update.scheduled]
    assert scheduled == list(range(2, 20, 2))
    assert lints_of(data_directory) == {}


def test_a_scheduler_that_steps_once_an_epoch(data_directory: Path) -> None:
    """A rate that stays the same in all updates of a long epoch gets no lint."""
    model = nn.Linear(2, 1)
    optimizer = SGD(model.parameters(), lr=0.01)
    scheduler = LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    scaler = ampmon.GradScaler("cpu", init_scale=4.0)
    for _ in range(1000 + LOOK_EVERY):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    scheduler.step()
    assert not lints_of(data_directory)


@pytest.mark.parametrize("unscale", [True, False])
def test_update_is_never_called(data_directory: Path, unscale: bool) -> None:
    """If `update` is never called torch refuses the second `step` or `unscale_`, and a lint gives the reason."""
    loop = Loop()
    loop.backward()
    loop.scaler.step(loop.optimizer)
    loop.backward()
    again = loop.scaler.unscale_ if unscale else loop.scaler.step
    with pytest.raises(RuntimeError, match=r"update\(\)|after step\(\)"):
        again(loop.optimizer)
    assert set(lints_of(data_directory)) == {"no_update"}


def test_the_optimizer_is_stepped_past_the_scaler(data_directory: Path) -> None:
    """Losses that are scaled without any call of the scaler's `step` get a lint: scaled gradients reach the weights."""
    scaler = ampmon.GradScaler("cpu")
    loss = torch.ones(())
    for _ in range(1000):
        scaler.scale(loss)
    assert set(lints_of(data_directory)) == {"no_step"}


class Whole(SGD):
    """An optimizer that is pickled with all its attributes, hooks included."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"fused": True}])
def test_a_second_step_of_an_optimizer_without_state_is_seen(
    data_directory: Path, options: dict[str, Any], *, twice: bool
) -> None:
    """`optimizer.step()` after the scaler's step gets a lint, with or without momentum. No pickle has the hook."""
    loop = Loop(Whole, **options)
    for _ in range(12):
        loop.backward()
        loop.scaler.step(loop.optimizer)
        if twice:
            loop.optimizer.step()
        loop.scaler.update()
        loop.optimizer.zero_grad()
        pickle.loads(pickle.dumps(loop.optimizer)).step()
    assert not loop.optimizer._optimizer_step_post_hooks
    assert set(lints_of(data_directory)) == ({"stepped_past"} if twice else set())


def test_two_optimizers_of_one_parameter(data_directory: Path) -> None:
    """Two optimizers of one parameter get a lint if both step in one update, and none if they take turns."""
    loop = Loop()
    other = SGD(named(loop.model[2].named_parameters()), lr=0.1)
    for together in (False, True):
        loop.backward()
        loop.scaler.step(loop.optimizer)
        if together:
            loop.scaler.step(other)
        loop.scaler.update()
        loop.optimizer.zero_grad()
    lint = lints_of(data_directory)["shared_parameter"]
    assert lint.detail["parameters"] == ["2.weight", "2.bias"]


def test_each_of_many_optimizers_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for shared parameters reads those of each optimizer once in an update, however many step."""
    read: list[torch.optim.Optimizer] = []

    def noted(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        read.append(optimizer)
        return parameters_of(optimizer)

    model = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(8)))
    optimizers = [SGD(layer.parameters(), lr=0.1) for layer in model]
    scaler = ampmon.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    monkeypatch.setattr(linter, "parameters_of", noted)
    scaler.update()
    assert read == optimizers


def test_an_optimizer_that_unscales_a_shared_gradient_is_no_loop_that_divides(
    data_directory: Path,
) -> None:
    """Two optimizers that unscale one gradient get the lint of the parameter that they share, and no other."""
    loop = Loop()
    other = SGD(named(loop.model[2].named_parameters()), lr=0.1)
    for _ in range(8):
        loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 100.0)
        for optimizer in (loop.optimizer, other):
            loop.scaler.step(optimizer)
        loop.scaler.update()
        loop.optimizer.zero_grad()
    assert set(lints_of(data_directory)) == {"shared_parameter"}


def test_of_many_optimizers_those_two_are_named_that_share(data_directory: Path) -> None:
    """If three optimizers step in one update, the lint names the two that share a parameter, in the order they step."""
    loop = Loop()
    parameters = [torch.nn.Parameter(torch.ones(())) for _ in range(2)]
    adamw, adam = torch.optim.AdamW(parameters), torch.optim.Adam(parameters[:1])
    loop.backward()
    loop.scaler.scale(sum(parameters, torch.zeros(()))).backward()
    for optimizer in (loop.optimizer, adam, adamw):
        loop.scaler.step(optimizer)
    loop.scaler.update()
    title = lints_of(data_directory)["shared_parameter"].detail["title"]
    assert title.startswith("Adam and AdamW hold the same 1 parameters")


def test_gradients_never_cleared(data_directory: Path) -> None:
    """Gradients that are never cleared get a lint."""
    loop = Loop()
    for _ in range(6):
        loop.backward()
        loop.finish(clear=False)
    assert set(lints_of(data_directory)) == {"uncleared_gradients"}


@pytest.mark.parametrize("clear", [None, True, False])
def test_gradients_that_ddp_writes_into(
    data_directory: Path, tmp_path: Path, clear: bool | None
) -> None:
    """Under DDP gradients that are never cleared get a lint; gradients cleared to None or to zero do not."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        _train_under_ddp(clear)
    finally:
        torch.distributed.destroy_process_group()
    assert set(lints_of(data_directory)) == (
        set() if clear is not None else {"uncleared_gradients"}
    )


def _train_under_ddp(clear: bool | None) -> None:
    """A function of its own, so that DDP is freed before the process group: otherwise torch may deadlock."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = SGD(model.parameters(), lr=0.01)
    scaler = ampmon.GradScaler("cpu", init_scale=16.0)
    for _ in range(8):
        scaler.scale(model(torch.randn(3, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        if clear is not None:
            optimizer.zero_grad(set_to_none=clear)


@pytest.mark.parametrize("after_scale", [False, True])
def test_gradients_cleared_behind_autograds_back(data_directory: Path, after_scale: bool) -> None:
    """Clearing gradients by `.data.zero_()`, which autograd does not see, counts as clearing."""
    loop = Loop()
    for _ in range(10):
        loss = loop.scaler.scale(loop.loss()) if after_scale else None
        for gradient in loop.gradients():
            gradient.data.zero_()
        (loop.scaler.scale(loop.loss()) if loss is None else loss).backward()
        loop.finish(clear=False)
    assert lints_of(data_directory) == {}


def test_a_state_that_is_poisoned(data_directory: Path) -> None:
    """After skips for NaN, a lint names the parameter whose optimizer state is NaN."""
    loop = Loop(Adam)
    loop.backward()
    loop.finish()
    loop.optimizer.state[loop.model[2].weight]["exp_avg"][0, 0] = float("nan")
    for _ in range(6):
        loop.backward()
        loop.spoil(float("nan"))
        loop.finish()
    lint = lints_of(data_directory)["poisoned_state"]
    assert lint.detail["parameters"] == ["2.weight"]
    assert lint.detail["stop"]


def test_nan_in_the_data_poisons_nothing(data_directory: Path) -> None:
    """Skips for NaN that leave weights and states finite get no lint."""
    loop = Loop(Adam)
    for _ in range(6):
        loop.backward()
        loop.spoil(float("nan"))
        loop.finish()
    assert lints_of(data_directory) == {}


def test_what_lints_look_at_is_only_enqueued() -> None:
    """Lints check gradients, weights and states without reading a value from the device."""
    loop = Loop(Adam)
    run = current_run.ensure()
    assert run is not None
    reporter = LintReporter(run.stream("lints"), run.warn)
    passes = None
    for update in range(3):
        loop.loss().backward()
        losses = Losses(lambda: None, run.failed)
        if passes is None:
            parameter = watchable(loop.optimizer)
            assert parameter is not None
            passes = GradientWatcher(
                loop.optimizer, parameter, losses, reporter, run.failed, sure=True
            )
        if update == 1:
            loop.gradients()[0].mul_(0.5)
        with NoSync():
            passes.unscaling(loop.optimizer, explicit=False)
            passes.updated(0.0, alone=True)
            passes.scaling(None)
            passes.begins()
        loop.optimizer.step()
    assert passes is not None
    assert (passes._filled is not None, passes._clipping.is_written) == (True, True)
    with NoSync():
        ready, _ = look([loop.optimizer], lambda parameter: "it", reporter)
    assert ready()


def test_a_watched_parameter_is_found_without_reading_all_others() -> None:
    """The watched parameter is looked up many times in an update, so that stops once it is found."""
    read = []

    class Parameters(list[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for each in super().__iter__():
                read.append(each)
                yield each

    loop = Loop()
    loop.loss().backward()
    first = watchable(loop.optimizer)
    assert first is not None
    group = loop.optimizer.param_groups[0]
    group["params"] = Parameters(group["params"])
    losses = Losses(lambda: None, lambda *_: None)
    watcher = GradientWatcher(
        loop.optimizer, first, losses, LintReporter(), lambda *_: None, sure=True
    )
    watcher.passed(first)
    watcher.moved()
    assert all(each is first for each in read)
    assert len(read) == 1


def test_a_lint_warns_and_says_what_to_write() -> None:
    """A lint above a notice is also a warning, once, with the code to write instead."""
    loop = Loop()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            loop.backward()
            loop.finish(clear=False)
    (warning,) = [each for each in caught if issubclass(each.category, ampmon.AmpmonWarning)]
    assert "optimizer.zero_grad()" in str(warning.message)


def test_each_lint_has_a_page() -> None:
    """Each lint has a page in docs/findings/."""
    pages = Path(__file__).parents[2] / "docs" / "findings"
    assert [rule for rule in LINTS if not (pages / f"{rule}.md").is_file()] == []
