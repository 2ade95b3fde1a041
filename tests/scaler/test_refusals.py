"""A lint gives the likely reason for what torch refuses, and for steps that torch accepts without a scaled loss."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

import ampmon
import scripts
from ampmon import wire
from recording import recording
from scaler.test_lints import Loop, lints_of


pytestmark = pytest.mark.filterwarnings("ignore::ampmon.AmpmonWarning")


def refused(loop: Loop, directory: Path) -> wire.Event:
    """Return the lint for a step that torch refuses for lack of gradients."""
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        loop.scaler.step(loop.optimizer)
    return lints_of(directory)["no_gradients"]


def test_gradients_that_are_cleared_before_the_step(data_directory: Path) -> None:
    """Clearing gradients before the step gets a critical lint with parameters' names, earlier steps and a fix."""
    loop = Loop()
    for _ in range(20):
        loop.backward()
        loop.finish()
    loop.backward()
    loop.optimizer.zero_grad()
    event = refused(loop, data_directory)
    assert event.ordinal == 20
    assert event.detail["severity"] == "critical"
    assert event.detail["title"] == "SGD steps without gradients: none of its 4 parameters has one"
    assert event.detail["parameters"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "in the 20 steps before" in event.detail["explanation"]
    assert "zero_grad()  # not before the step" in event.detail["fix"]


def test_parameters_that_were_replaced_in_the_model(data_directory: Path) -> None:
    """accelerate#328: a lint says that an optimizer's parameters were replaced in the model."""
    loop = Loop()
    for module in (loop.model[0], loop.model[2]):
        module.weight, module.bias = nn.Parameter(module.weight), nn.Parameter(module.bias)
    loop.backward()
    event = refused(loop, data_directory)
    assert "None of them is in the model" in event.detail["explanation"]
    assert "torch.optim.SGD(model.parameters(), lr=...)" in event.detail["fix"]


def test_frozen_parameters(data_directory: Path) -> None:
    """A lint says that all parameters of an optimizer are frozen. No adapter froze those outside the model."""
    loop = Loop()
    loop.optimizer = SGD([torch.zeros(3)], lr=0.1)
    loop.backward()
    explanation = refused(loop, data_directory).detail["explanation"]
    assert "All of them are frozen." in explanation
    assert "adapters" not in explanation


def test_a_discriminator_that_is_still_frozen(data_directory: Path) -> None:
    """For parameters that stepped before, such as a discriminator's, the lint says to unfreeze them."""
    loop = Loop()
    loop.backward()
    loop.finish()
    loop.model.requires_grad_(False)
    loop.model.append(nn.Linear(1, 1))
    loop.optimizer.zero_grad()
    loop.backward()
    detail = refused(loop, data_directory).detail
    assert "adapters" not in detail["explanation"]
    assert "parameter.requires_grad_(True)" in detail["fix"]


@pytest.mark.parametrize("given", [True, False])
def test_a_discriminator_that_is_frozen_at_first(data_directory: Path, given: bool) -> None:
    """No adapter froze a discriminator before its first step, although the generator in the same model is trained."""
    discriminator, generator = nn.Linear(2, 1), nn.Linear(2, 2)
    model = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    loop = Loop()
    loop.scaler = ampmon.GradScaler("cpu", model=model if given else None)
    loop.optimizer = SGD(discriminator.requires_grad_(False).parameters(), lr=0.1)
    loop.scaler.scale(discriminator(generator(torch.ones(2))).sum()).backward()
    detail = refused(loop, data_directory).detail
    assert "adapters" not in detail["explanation"]
    assert "parameter.requires_grad_(True)" in detail["fix"]


@pytest.mark.parametrize("given", [True, False])
def test_adapters_that_were_added_after_the_optimizer(data_directory: Path, given: bool) -> None:
    """If an adapter froze the optimizer's parameters, the lint says to build the optimizer from those that it trains.

    It does so whether the scaler was given the model or not.
    """
    loop = Loop()
    if not given:
        loop.scaler = ampmon.GradScaler("cpu")
    loop.model.requires_grad_(False)
    loop.model.append(nn.Linear(1, 1))
    loop.backward()
    detail = refused(loop, data_directory).detail
    assert "The model trains other parameters" in detail["explanation"]
    assert "torch.optim.SGD([p for p in model.parameters() if p.requires_grad]" in detail["fix"]


def test_an_optimizer_that_was_changed(data_directory: Path) -> None:
    """The lint says how many parameters an optimizer gained and lost since its first step."""
    loop = Loop()
    loop.backward()
    loop.finish()
    loop.backward()
    later = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    loop.optimizer.param_groups[0]["params"] = [*later, *loop.optimizer.param_groups[0]["params"]]
    loop.optimizer.zero_grad()
    explanation = refused(loop, data_directory).detail["explanation"]
    assert "3 parameters were added and 0 removed" in explanation


@pytest.mark.parametrize("where", ["unscale_", "step"])
@pytest.mark.parametrize("resumed", [True, False])
def test_a_scaler_that_has_no_scale_yet(data_directory: Path, where: str, resumed: bool) -> None:
    """fairseq2#1346: unscaling before the first `scale()`, which torch refuses, gets a lint, after a load too."""
    loop = Loop()
    if resumed:
        loop.scaler.load_state_dict({**torch.amp.GradScaler("cpu").state_dict(), "scale": 512.0})
    loop.loss().backward()
    with pytest.raises(AssertionError, match=f"Attempted {where} but _scale is None"):
        getattr(loop.scaler, where)(loop.optimizer)
    lints = lints_of(data_directory)
    assert set(lints) == {"used_before_scale"}
    detail = lints["used_before_scale"].detail
    assert detail["title"] == f"`{where}()` is called before `scale()`"
    assert ("first loss after a resume" in detail["explanation"]) is resumed


@pytest.mark.parametrize("after", ["unscale_", "step"])
def test_a_loop_that_goes_on_after_an_interruption(data_directory: Path, after: str) -> None:
    """If an exception ended an iteration before `update()`, the lint for torch's refusal says to call that."""
    loop = Loop()
    for _ in range(3):
        loop.backward()
        loop.finish()
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    if after == "step":
        loop.scaler.step(loop.optimizer)
    loop.optimizer.zero_grad()
    loop.backward()
    with pytest.raises(RuntimeError, match="unscale_"):
        loop.scaler.unscale_(loop.optimizer)
    (event,) = lints_of(data_directory).values()
    assert "adds scaled gradients" not in event.detail["title"]
    assert "call `scaler.update()` before the next one" in event.detail["explanation"]


@pytest.mark.parametrize("before", [0, 3])
def test_an_update_without_a_step(data_directory: Path, before: int) -> None:
    """An `update()` after `optimizer.step()` gets the lint that the scaler's `step` is missing."""
    loop = Loop()
    for _ in range(before):
        loop.backward()
        loop.finish()
    loop.backward()
    loop.optimizer.step()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        loop.scaler.update()
    event = lints_of(data_directory)["no_step"]
    assert event.detail["title"] == "`update()` is called without `step()`"


def test_each_refused_call_is_recorded(data_directory: Path) -> None:
    """Each error is recorded once, even if it is at the address of the one before, which is gone."""
    loop = Loop()
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    for _ in range(4):
        with contextlib.suppress(RuntimeError):
            loop.scaler.unscale_(loop.optimizer)
    events = recording(data_directory).events("step_raised")
    assert [event.detail["where"] for event in events] == ["unscale_"] * 4


def test_parameters_met_in_a_call_that_raised_have_names(data_directory: Path) -> None:
    """After a call that torch refused, the samples' parameters are in the header."""
    loop = Loop()
    with pytest.raises(AssertionError, match="_scale is None"):
        loop.scaler.unscale_(loop.optimizer)
    loop.backward()
    loop.finish()
    recorded = recording(data_directory)
    places = recorded.statistics(0).parameters.tolist()
    assert [recorded.header().parameters[place].name for place in places] == [
        name for name, _ in loop.model.named_parameters()
    ]


class Passing(torch.optim.Optimizer):
    """Another optimizer whose steps go through the scaler, as in Accelerate's wrapper."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        self.__dict__ |= optimizer.__dict__
        self.inner, self.scaler = optimizer, scaler

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.scaler.step(self.inner)
        self.scaler.update()


def resume(scaler: torch.amp.GradScaler, *, again: bool = False) -> float:
    """Load a checkpoint as Accelerate does under FSDP2 (accelerate#4289), the scaler ``again``; return its scale."""
    # This import takes a second, in every process that collects this module.
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = nn.Linear(4, 4)
    state = {**scaler.state_dict(), "scale": 512.0, "growth_interval": 2, "_growth_tracker": 1}
    scaler.load_state_dict(state)
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    get_optimizer_state_dict(model, Passing(Adam(model.parameters()), scaler))
    if again:
        scaler.load_state_dict(state)
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    return scaler.get_scale()


def test_a_load_that_steps_the_scaler(data_directory: Path) -> None:
    """If torch's distributed checkpointing steps the scaler during a load, the scale changes, with a warning."""
    assert resume(ampmon.GradScaler("cpu")) == 1024.0
    detail = lints_of(data_directory)["moved_outside_training"].detail
    assert detail["severity"] == "warning"
    assert detail["title"].endswith("before the first `scale()` after its state was loaded")


def test_a_scaler_that_is_loaded_last(data_directory: Path) -> None:
    """Loading the scaler last, as the fix says, keeps the scale of the file and gets no lint."""
    assert resume(ampmon.GradScaler("cpu"), again=True) == 512.0
    assert lints_of(data_directory) == {}


UNCHANGED = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import ampmon, torch
ampmon.auto()
from scaler.test_refusals import resume
resume(torch.amp.GradScaler("cpu"))
"""


def test_a_load_that_steps_a_framework_s_scaler(data_directory: Path) -> None:
    """Under `ampmon run`, where such a step is the scaler's first call, it gets the same lint."""
    scripts.run("-c", UNCHANGED)
    assert set(lints_of(data_directory)) == {"moved_outside_training"}


def test_training_between_loads_is_not_outside(data_directory: Path) -> None:
    """Loading a state in the middle of training, and copying a scaler, get no lint."""
    loop = Loop()
    for update in range(4):
        loop.backward()
        if update == 2:  # between a backward pass and its step
            loop.scaler.load_state_dict(loop.scaler.state_dict())
        loop.finish()
        if update == 1:
            loop.scaler.load_state_dict(loop.scaler.state_dict())
    loop.scaler = copy.deepcopy(loop.scaler)
    loop.backward()
    loop.finish()
    assert recording(data_directory).events("lint") == []
