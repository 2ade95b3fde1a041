"""Reads optimizers: their parameters and state, learning rates, steps and scalers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from posixpath import commonpath
from typing import Any, TypeAlias

import torch
from torch.nn.parameter import is_lazy

from ampmon.lints.reporter import ENOUGH, LintReporter
from ampmon.probe.gradients import local_elements
from ampmon.probe.hooks import WeakHook
from ampmon.probe.ring import Readback
from ampmon.training.series import Ready, Write


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _version_of(optimizer: torch.optim.Optimizer) -> int:
    """A number that grows with each write into the optimizer's weights, except through ``.data``."""
    return sum(parameter._version for parameter in parameters_of(optimizer))


def state_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> Mapping[str, Any]:
    """Return the optimizer's state for a parameter. Some have no ``state`` at all, as fastai's callback."""
    state = getattr(optimizer, "state", None)
    return state.get(parameter, {}) if isinstance(state, Mapping) else {}


def constructor_of(optimizer: torch.optim.Optimizer) -> str:
    """Its class as a script writes it, such as ``torch.optim.SGD``."""
    kind = type(optimizer)
    torchs = kind.__module__.startswith("torch.optim.")
    return f"{'torch.optim.' if torchs else ''}{kind.__name__}"


def begins_with_leftovers(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its next step creates momentum buffers from uninitialised memory: fused SGD's first step does."""
    if not isinstance(optimizer, torch.optim.SGD):
        return False
    groups = [group for group in optimizer.param_groups if group["fused"] and group["momentum"]]
    states = (state_of(optimizer, each) for group in groups for each in group["params"])
    return bool(groups) and not any(state.get("momentum_buffer") is not None for state in states)


class Rates:
    """The learning rate of an optimizer's first group, checked at each step. Reads no tensor's value."""

    __slots__ = ("_last", "steps")

    def __init__(self) -> None:
        self._last: Any = None
        self.steps = 0

    def differ(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step. Return whether the rate has changed since the last one."""
        rate = optimizer.param_groups[0].get("lr")
        # Most rates are floats, and isinstance takes five times as long to see that.
        if type(rate) is not float and isinstance(rate, torch.Tensor):
            rate = id(rate), rate._version
        self.steps += 1
        if rate == self._last:
            return False
        self._last = rate
        return self.steps > 1


class Schedule:
    """Combines rate changes, seen on the training thread, with skips, known when records are written."""

    def __init__(self) -> None:
        self.skipped = False
        """Whether the newest update was skipped."""

    def written(self, moved: bool, skipped: bool) -> bool:
        """Called with each update in order. Return whether a rate ``moved`` between a skip and this update."""
        scheduled = moved and self.skipped
        self.skipped = skipped
        return scheduled


WAITING = 8
"""A loop may leave out a step with large gradients, but not this many in a row."""
STEPPED = "has stepped without the scaler"


class Waiting:
    """Counts consecutive updates for which an optimizer was unscaled but not stepped."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._version = _version_of(optimizer)
        self._scale = 0.0
        self._updates = self._moves = 0
        """These updates, and those among them in which the weights changed."""
        self._rested = False
        """Whether the weights ever stayed. A loop that steps by itself leaves out steps after overflows."""

    def updated(self, optimizer: torch.optim.Optimizer, *, waits: bool, scale: float) -> str | None:
        """Return what it did in the first `WAITING` updates that it ``waits``, if that is wrong.

        ``scale`` is the newest that is known. If it fell, as after overflows, the count starts again.
        """
        before, self._version = self._version, _version_of(optimizer)
        moves = self._version != before
        self._rested |= waits and not moves
        goes_on = waits and scale >= self._scale
        self._updates = self._updates + 1 if goes_on else 0
        self._moves = self._moves + moves if goes_on else 0
        self._scale = scale
        if self._updates != WAITING:
            return None
        # Other code writes into weights too, as when a checkpoint is loaded.
        if self._moves <= WAITING // 2:
            return "has not stepped"
        return None if self._rested else STEPPED


State = tuple[object, ...]
_watched: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
"""The number of scalers that step each optimizer. With several, the second step may be another scaler's."""


class Steps:
    """An optimizer's state after the scaler's step, or how often it stepped, if it has none, as SGD without momentum.

    Weights are not compared: other code may write into them between step and update, for example to clamp them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._left: State | None = None
        self._counts = False
        """Whether a hook counts the steps."""
        self._count = self._past = 0
        """Steps with gradients; consecutive updates with a second step."""
        _watched[optimizer] = _watched.get(optimizer, 0) + 1

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        state = _state(optimizer)
        if state is None and not self._counts:
            self._counts = True
            # Only the constructor of torch's own makes these. To register one would break a graph of torch.compile.
            hooks = getattr(optimizer, "_optimizer_step_post_hooks", {})
            hooks[id(self)] = WeakHook(self._count_one)
            weakref.finalize(self, hooks.pop, id(self), None)
        self._left = state or (self._count,)

    def _count_one(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        with suppress(Exception):  # uncounted, rather than an error in the optimizer's step
            self._count += any(each.grad is not None for each in parameters_of(optimizer))

    def past(self, optimizer: torch.optim.Optimizer) -> bool:
        """Called after an update. Return whether each of the last ones had a second step."""
        left, self._left = self._left, None
        stepped = left not in (None, _state(optimizer) or (self._count,))
        self._past = self._past + 1 if stepped else 0
        return self._past >= ENOUGH and _watched.get(optimizer) == 1


def _state(optimizer: torch.optim.Optimizer) -> State | None:
    """Tensor versions and numbers in the state of the first parameter that has any."""
    for parameter in parameters_of(optimizer):
        if state := state_of(optimizer, parameter):
            return tuple(
                each._version if isinstance(each, torch.Tensor) else each
                for each in state.values()
                if isinstance(each, (torch.Tensor, int, float))
            )
    return None


Beginning: TypeAlias = tuple[Any, Any]
"""A scaler's initial scale and growth tracker, on the host."""
SCALERS = 3
"""A second scaler may begin a new phase of training, a third is reported."""


Known: TypeAlias = tuple[Beginning | None, weakref.ref[Any], int]
_known: weakref.WeakKeyDictionary[torch.optim.Optimizer, Known] = weakref.WeakKeyDictionary()
"""For each optimizer: the beginning of the scalers that stepped it in a row, the last of them, and their number."""


def beginning(scaler: Any) -> Beginning | None:
    """Return what a scaler begins with, or None if it has scaled already. Reads no tensor."""
    if not has_no_scale(scaler):
        return None
    return scaler.__dict__.get("_init_scale"), scaler.__dict__.get("_init_growth_tracker")


def made_anew(
    optimizer: torch.optim.Optimizer, scaler: weakref.ref[Any], begun: Beginning | None
) -> bool:
    """Whether this scaler is the third in a row to step the optimizer, all with the same beginning.

    ``begun`` is None if the scaler was given a state, or has scaled before ampmon saw it.
    """
    before, last, scalers = _known.get(optimizer, (None, scaler, 0))
    if begun is None or begun != before:
        scalers = 0
    elif last is scaler or last() is scaler():
        return False
    _known[optimizer] = begun, scaler, scalers + 1
    return scalers + 1 == SCALERS


_NEW_OPTIMIZER = (
    "model = model.to(device)  # also add wrappers and adapters first\n"
    "optimizer = {constructor}(model.parameters(), lr=...)"
)
_ADAPTED = (
    "All of them are frozen. The model trains other parameters, which are not in the optimizer: adapters such as LoRA "
    "add some, and freeze the rest."
)
_OF_TRAINED = (
    "model = add_adapters(model)  # first, and freeze the rest\n"
    "optimizer = {constructor}([p for p in model.parameters() if p.requires_grad], lr=...)"
)
_IN_TURN = (
    "scaler.scale(loss).backward()\nscaler.step(optimizer)  # only those that this loss trains\n"
    "scaler.update()\noptimizer.zero_grad()  # not before the step"
)
_NO_WAY = (
    "This loss does not depend on them, or `zero_grad()` runs between `backward()` and `step()`."
)


def has_no_scale(scaler: Any) -> bool:
    """Whether `scale()` was never called. Loading a state does not create the scale."""
    state = scaler.__dict__
    return "_scale" in state and state["_scale"] is None


def why_no_gradients(
    optimizer: torch.optim.Optimizer,
    held: Sequence[int],
    of_model: Mapping[int, tuple[str, bool]],
    steps: int,
) -> tuple[str, str] | None:
    """Return the likely reason and the code to write instead, or None if some parameter has a gradient.

    ``held`` are ids of the optimizer's parameters when it was first seen. ``of_model`` has those of the models now, if
    known: the name of each, and whether it is trained. ``steps`` counts earlier steps.
    """
    parameters = parameters_of(optimizer)
    if any(parameter.grad is not None for parameter in parameters):
        return None
    now, then = {id(parameter) for parameter in parameters}, set(held)
    if not any(parameter.requires_grad for parameter in parameters):
        frozen = [name for each, (name, _) in of_model.items() if each in now]
        # If they stepped before, the loop froze them, as a GAN's does with its discriminator.
        if not steps and _are_adapted(frozen, of_model.values()):
            return _ADAPTED, _OF_TRAINED.format(constructor=constructor_of(optimizer))
        return (
            "All of them are frozen.",
            "parameter.requires_grad_(True)  # before the backward pass",
        )
    if of_model and now.isdisjoint(of_model):
        return (
            "None of them is in the model: they were replaced after the optimizer was built. Wrappers, adapters and "
            "moves to another device can do that.",
            _NEW_OPTIMIZER.format(constructor=constructor_of(optimizer)),
        )
    if steps and now != then:
        change = f"{len(now - then)} parameters were added and {len(then - now)} removed"
        return f"The optimizer was changed since its first step: {change}. {_NO_WAY}", _IN_TURN
    before = f"They had gradients in the {steps} steps before. " if steps else ""
    return before + _NO_WAY, _IN_TURN


def _are_adapted(frozen: Sequence[str], models: Collection[tuple[str, bool]]) -> bool:
    """Whether the smallest module that holds all the frozen parameters trains others."""
    place = commonpath(map(_module_of, frozen)) if frozen else "/"
    return any(trained and _module_of(name).is_relative_to(place) for name, trained in models)


def _module_of(parameter: str) -> PurePosixPath:
    return PurePosixPath(*parameter.split(".")[:-1])


NameOf = Callable[[torch.Tensor], str]


def look(
    optimizers: Iterable[torch.optim.Optimizer], name_of: NameOf, reporter: LintReporter
) -> tuple[Ready, Write]:
    """Start to check the optimizers' weights and states, in one pass. Does not wait for a device.

    Return whether the values are there, and what then reports those that are not finite.
    """
    by_device: dict[torch.device, tuple[list[str], list[torch.Tensor]]] = {}
    for optimizer in optimizers:
        for name, tensor in _held(optimizer, name_of):
            names, flags = by_device.setdefault(tensor.device, ([], []))
            names.append(name)
            flags.append(tensor.isfinite().all())
    parts = [(names, Readback(torch.stack(flags))) for names, flags in by_device.values()]
    return (
        lambda: all(flags.ready() for _, flags in parts),
        partial(_report_poisoned, parts, reporter),
    )


def _report_poisoned(parts: list[tuple[list[str], Readback]], reporter: LintReporter) -> None:
    poisoned = [
        name
        for names, flags in parts
        for name, finite in zip(names, flags.result().tolist(), strict=True)
        if not finite
    ]
    if poisoned:
        reporter.say("poisoned_state", list(dict.fromkeys(poisoned)), count=len(poisoned))


def _held(optimizer: torch.optim.Optimizer, name_of: NameOf) -> Iterator[tuple[str, torch.Tensor]]:
    for parameter in parameters_of(optimizer):
        if is_lazy(parameter):
            continue
        name = name_of(parameter)
        # Only this rank's part of a sharded tensor: reading all of it would be a collective.
        yield name, local_elements(parameter)
        for value in state_of(optimizer, parameter).values():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                yield name, local_elements(value)
