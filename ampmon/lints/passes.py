"""Watches one gradient of an optimizer over its first updates: what is added to it, and when it is cleared."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampmon.lints.gradient_checks import Clearing, Clipping, HandUnscaling
from ampmon.lints.losses import Losses, is_distributed, leaves_of, nodes_of
from ampmon.lints.optimizers import Steps, parameters_of
from ampmon.lints.reporter import ADDED, BARE, ENOUGH, LintReporter
from ampmon.probe.gradients import MEASURED, is_hookable, plain_gradients
from ampmon.probe.hooks import WeakHook, forget_hooks
from ampmon.probe.ring import Readback


FORGOTTEN = (
    "`update()` was called between `unscale_()` and `step()`. It makes the scaler forget that the gradients are "
    "unscaled"
)
UPDATES = 8
"""Updates for which the hook watches an optimizer. A faulty loop is faulty from the start."""
MOST = 64
"""The most updates while clipping is unsettled."""


@dataclass(slots=True)
class _GradientHistory:
    """What happened to the gradient since the last update."""

    passes: int = 0
    version: int | None = None
    """The gradient's version after the newest pass."""
    memory: StorageWeakRef | None = None
    """The gradient's memory after the newest pass. Its address proves nothing, because another may get it."""
    weights: tuple[int, StorageWeakRef | None] | None = None
    """The parameter's version and memory at the first pass. A write through ``.data`` may change only the memory."""
    whole: bool = True
    """Whether the weights were the same in all passes, and the loop gave them no other gradient in between."""
    scalings: int = 0
    """Losses that were scaled."""
    made_of: set[int | str] = field(default_factory=set)
    """Ids of the parameters and names of the operations behind the newest of them. Only looked for if that matters."""
    apart: bool = False
    """Whether these differ, as those of several tasks do, and of a sum that weights their losses."""
    attacks: bool = False
    """Whether one depends on an input that takes a gradient, which may be passed on by hand, in another pass."""
    scaled: int = 0
    """Passes of scaled losses."""
    bare: tuple[int, int] | None = None
    """Passes and version after the newest pass of a loss that this scaler did not scale."""
    bare_loss: Literal["unscaled", "other"] = "unscaled"
    """Whether another scaler did."""
    unscaled: int | None = None
    """Passes of scaled losses when `unscale_` was called."""
    divided: tuple[int, int | None] | None = None
    """Passes and version when the gradient was last unscaled."""
    moved: tuple[int, int] | None = None
    """Passes and version at an `update()` without a step, if there was a gradient."""
    gone: bool = False
    """Whether the gradient was missing when a later pass began."""
    between: Readback | None = None
    """Sizes of all gradients when a later pass began, if other code had written into them."""
    summed: Readback | None = None
    """Their sizes before they were unscaled, in the same case."""
    stepped: bool = False
    again: bool = False
    """Whether a loss came twice."""
    late: bool = False
    """Whether a pass followed the step."""


class GradientWatcher:
    """Counts the backward passes that reach one parameter, with a hook, and sees other writes to its gradient.

    Each write into a tensor raises its version by one, and so does a backward pass that adds to it. Unscaling does not.
    It holds neither parameter nor gradient, but finds them again through the optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameter: torch.Tensor,
        losses: Losses,
        reporter: LintReporter,
        report: Callable[[str, Exception], None],
        *,
        sure: bool,
    ) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._known = id(parameter)
        self._losses, self._sure = losses, sure
        """Whether all losses of the current update were seen in `scale()`."""
        self._reporter, self._report = reporter, report
        self.steps = Steps(optimizer)
        self._clearing, self._clipping = Clearing(reporter), Clipping(reporter)
        self._dividing = HandUnscaling(reporter)
        self._updates = 0
        self._now = _GradientHistory()
        self._left: int | None = None
        """The gradient's version after the last update."""
        self._untouched = False
        """Whether the first pass since the last update added to the gradient which that left."""
        self._kept = 0
        """Consecutive updates over which the gradient was not cleared."""
        self._filled: Readback | None = None
        self._dropped = False
        """Whether a pass followed the step in the last update. False with several optimizers."""
        self._unscaled = 0
        """Updates whose step used the gradient of such a pass. The first starts the search for inputs."""
        self._repeats = self._lost = 0
        """Consecutive updates with a loss that came twice, and with a late pass whose gradients were cleared."""
        self.autocast = False
        self._autocasts = torch.amp.is_autocast_available(parameter.device.type)
        hook = WeakHook(self.passed)
        self._handle: Any = parameter.register_post_accumulate_grad_hook(hook)
        weakref.finalize(self, self._handle.remove)

    @property
    def over(self) -> bool:
        """Whether the hook is removed."""
        return self._handle is None

    def passed(self, parameter: torch.Tensor) -> None:
        """Called after a backward pass has added to the gradient."""
        now = self._now
        try:
            now.passes += 1
            now.version = _version(parameter)
            self._see_loss(parameter)
            if now.passes == 1 and self._left is not None:
                self._untouched = self._untouched and now.version == self._left + 1
            self.autocast |= self._autocasts and torch.is_autocast_enabled(parameter.device.type)
        except Exception as error:
            self._report("lint", error)
            self.close()

    def _see_loss(self, parameter: torch.Tensor) -> None:
        now = self._now
        gradient = parameter.grad
        now.memory = _memory(gradient)
        weights = parameter._version, _memory(parameter)
        if now.passes == 1:
            now.weights = weights
            self._clearing.passed(gradient)
        if self._clipping.is_written:
            self._dividing.passed(gradient)
        now.whole = now.whole and now.weights == weights
        own, again = self._losses.reaching(id(self))
        now.again |= again
        now.late |= now.stepped and own
        sure = self._sure or self._updates
        bare = self._losses.bare(id(self), own=own) if sure else None
        if bare is not None:
            now.bare, now.bare_loss = (now.passes, now.version or 0), bare
        else:
            now.scaled += 1

    def begins(self) -> None:
        """Called when a backward pass begins in a scaled loss."""
        now = self._now
        if not now.passes:
            self._see_whether_filled()
        if not now.scaled or now.unscaled is not None:
            return
        gradient, optimizer = self._gradient(), self._optimizer()
        if gradient is None:
            now.gone = True
        elif now.memory != _memory(gradient):
            now.whole = False
        elif gradient._version != now.version and optimizer is not None and now.scaled == 1:
            now.between = self._measure(optimizer)

    def _see_whether_filled(self) -> None:
        # Only once, right before the verdict, because it reads the whole gradient.
        gradient = self._gradient() if self._kept == ENOUGH - 1 and self._filled is None else None
        if gradient is not None:
            self._filled = Readback(torch.count_nonzero(gradient))

    def scaling(self, outputs: Any) -> None:
        """Called before `scale()`, so what the gradient holds precedes this loss's backward pass."""
        now = self._now
        now.scalings += 1
        if self._clearing.suspects or self._unscaled:
            self._see_inputs(outputs)
        if not now.passes:
            left = self._left
            self._untouched = left is not None and _version(self._parameter()) == left

    def _see_inputs(self, outputs: Any) -> None:
        optimizer = self._optimizer()
        held = {id(each) for each in parameters_of(optimizer)} if optimizer is not None else set()
        nodes = list(nodes_of(outputs))
        leaves = {id(leaf): isinstance(leaf, torch.nn.Parameter) for leaf in leaves_of(nodes)}
        parameters = {leaf for leaf, parameter in leaves.items() if parameter or leaf in held}
        now = self._now
        now.attacks |= len(parameters) < len(leaves)
        made_of = parameters | {node.name() for node in nodes}
        now.apart |= now.scalings > 1 and now.made_of != made_of
        now.made_of = made_of

    def unscaling(self, optimizer: torch.optim.Optimizer, *, explicit: bool) -> None:
        """Called before the gradients are unscaled: by `unscale_` if ``explicit``, else in `step`."""
        now = self._now
        version = _version(self._parameter())
        if explicit:
            now.unscaled = now.scaled
        else:
            now.stepped = True
        if self.autocast:
            self._reporter.say("backward_under_autocast")
        if version is None or not now.passes:
            return
        if now.divided == (now.passes, version):
            self._reporter.say("unscaled_twice", why=FORGOTTEN)
        now.divided = now.passes, version
        self._see_whether_kept(version)
        if (
            now.moved is not None
            and now.passes > now.moved[0]
            and self._only_added(now.moved, version)
        ):
            self._reporter.say("scale_within_batch")
        bare = now.bare is not None and (not now.scaled or self._only_added(now.bare, version))
        if bare and (not now.attacks or self._losses.passed_through(id(self))):
            self._unscaled += 1
            if self._unscaled > 1:
                self._reporter.say("unscaled_loss", **BARE[now.bare_loss])
        self._see_written(optimizer, version)

    def _see_written(self, optimizer: torch.optim.Optimizer, version: int) -> None:
        now, is_written = self._now, version != self._now.version
        if now.between is not None:
            now.summed = _sizes(optimizer)
        # A loop that reads and clears the gradients of each pass may write their sum. DDP's reducer writes too.
        now.whole = now.whole and (not is_written or is_distributed())
        if is_written and (self._clearing.wants or not self._reporter.knows("clip_before_unscale")):
            self._clearing.stepping(self._measure(optimizer))
            self._dividing.stepping(self._gradient())

    def _only_added(self, since: tuple[int, int], version: int) -> bool:
        """Whether only backward passes wrote into the gradient since these passes and this version."""
        count, at = since
        return version == at + self._now.passes - count

    def _see_whether_kept(self, version: int) -> None:
        # If other code writes into it too, such as DDP's reducer, the first pass decides, if the step has one loss.
        added = self._left is not None and version == self._left + self._now.passes
        kept = added or (self._now.scalings == 1 and self._untouched)
        self._kept = self._kept + 1 if kept else 0
        self._lost = self._lost + 1 if self._dropped and not kept else 0
        if self._lost >= ENOUGH:
            self._reporter.say("cleared_before_step")
        filled = self._filled is not None and self._filled.ready() and self._filled.result().item()
        if self._kept >= ENOUGH and filled:
            self._reporter.say("uncleared_gradients")

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before a `step()` that follows `unscale_()`."""
        now = self._now
        now.stepped = True
        if now.unscaled is not None and now.scaled > now.unscaled:
            self._reporter.say("unscale_in_accumulation", **ADDED)
        version = _version(self._parameter())
        if version is None:
            if all(each.grad is None for each in parameters_of(optimizer)):
                self._clearing.emptied += 1
        elif now.divided is not None and version != now.divided[1] and self._clearing.wants:
            self._clearing.stepping(_sizes(optimizer))

    def moved(self) -> None:
        """Called after an `update()` without a step."""
        now = self._now
        version = _version(self._parameter())
        if now.passes and version is not None:
            now.moved = (now.passes, version)

    def updated(self, scale: float, *, alone: bool) -> None:
        """Called after an update. ``scale`` is the newest known one, or 0. ``alone``: the scaler has one optimizer."""
        now = self._now
        self._clipping.updated(scale)
        self._dividing.updated(scale if alone else 0)
        gradient = self._gradient()
        kept = gradient is None or (now.memory is not None and now.memory == _memory(gradient))
        differ = now.attacks or now.apart
        accumulates = alone and kept and now.whole and now.scalings > 1 and not differ
        between = (now.between, now.summed) if now.between and now.summed else None
        self._clearing.updated(accumulates=accumulates, gone=now.gone, between=between)
        self._repeats = self._repeats + 1 if now.again else 0
        if self._repeats == ENOUGH:
            self._reporter.say("backward_twice")
        # With several optimizers, the loss of one may reach another's parameters. The other clears those gradients.
        self._dropped = alone and now.late
        self._left = _version(self._parameter())
        self._now = _GradientHistory()
        self._updates += 1
        if self._updates >= (MOST if self._clipping.unsettled else UPDATES):
            self.close()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
            if (parameter := self._parameter()) is not None:
                forget_hooks(parameter)

    def _parameter(self) -> torch.Tensor | None:
        optimizer = self._optimizer()
        groups = optimizer.param_groups if optimizer is not None else ()
        # Not `parameters_of`, which lists them all: the parameter is usually the first.
        held: Iterator[torch.Tensor] = (each for group in groups for each in group["params"])
        return next((each for each in held if id(each) == self._known), None)

    def _gradient(self) -> torch.Tensor | None:
        parameter = self._parameter()
        return parameter.grad if parameter is not None else None

    def _measure(self, optimizer: torch.optim.Optimizer) -> Readback | None:
        """Measure scaled gradients that other code wrote into."""
        sizes = _sizes(optimizer)
        self._clipping.written(sizes)
        return sizes


def _memory(tensor: torch.Tensor | None) -> StorageWeakRef | None:
    """Identify a tensor's memory. A weak reference to the tensor would keep torch from swapping it."""
    return StorageWeakRef(tensor.untyped_storage()) if tensor is not None else None


def watchable(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """Return a parameter whose gradient can be watched. None if autograd itself makes none of them, as in FSDP."""
    for parameter in parameters_of(optimizer):
        gradient = parameter.grad
        if gradient is not None and gradient.layout is torch.strided and is_hookable(parameter):
            return parameter
    return None


@torch.no_grad()
def _sizes(optimizer: torch.optim.Optimizer) -> Readback | None:
    """Norm and largest magnitude of all gradients. None unless they are plain and share device and dtype."""
    gradients = plain_gradients(optimizer, MEASURED) or []
    tensors = [gradient for _, gradient in gradients if gradient.numel()]
    if len({(tensor.device, tensor.dtype) for tensor in tensors}) != 1:
        return None
    norms = torch.stack(torch._foreach_norm(tensors))
    peaks = torch.stack(torch._foreach_norm(tensors, float("inf")))
    return Readback(torch.stack([norms.norm(), peaks.max()]).float())


def _version(parameter: torch.Tensor | None) -> int | None:
    gradient = parameter.grad if parameter is not None else None
    return gradient._version if gradient is not None else None
