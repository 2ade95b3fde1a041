"""A scaler's state before and after each update: read at once on a CPU, followed or requested on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from ampmon.client.iteration import Iteration
from ampmon.probe.pending import Pending
from ampmon.probe.ring import Readback
from ampmon.training import outcome
from ampmon.training.outcome import AnyReading, Reading, Rules


State: TypeAlias = tuple[float, int]
"""Scale and growth tracker."""
Stamp: TypeAlias = tuple[int, int, int, int]
Tensors: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A scaler's scale and growth tracker."""
_NOTHING = torch.zeros(1, device="cpu")
"""The host copy of found_inf where nothing was found. Shared, so nothing may write into it."""


class ReadingBefore(Pending[Reading]):
    """The state before an update that nothing changed since the ``last`` update, with what it found by then.

    ``flags`` are the found_inf tensors of the optimizers that stepped, on their way to the host.
    """

    __slots__ = ()

    def __init__(self, last: AnyReading, flags: Readback) -> None:
        def read() -> Reading:
            state, found = last.result(), flags.values()
            return Reading(state.scale, state.growth_tracker, [each != 0 for each in found])

        super().__init__(read, last, flags)


class FollowedReading(Pending[Reading]):
    """The state that `update()` leaves on a device, computed on the host from the state before it."""

    __slots__ = ()

    def __init__(self, before: ReadingBefore, rules: Rules) -> None:
        def read() -> Reading:
            last = before.result()
            state = last.scale, last.growth_tracker
            return Reading(*moved(state, True in last.found, rules), [])

        super().__init__(read, before)


class ScaleFollower:
    """Follows a scaler's state by what its optimizers' steps bring to the host, else requests it from the device.

    The step of an optimizer that is not fused reads found_inf, the one synchronisation of an iteration. With it, scale
    and growth tracker need no reading: the host computes them with the arithmetic of `update()`, from a state that has
    arrived. Each sample checks them against the device. ``failed`` is called if they differ, and nothing is followed
    from then on. ``read`` requests a state, as `outcome.read` does.
    """

    def __init__(
        self,
        scaler: Any,
        failed: Callable[[str, Exception], None],
        read: Callable[[Any, Iterable[int]], AnyReading] = outcome.read,
    ) -> None:
        of = partial(outcome.maker, type(scaler))
        # FSDP's scaler has an `update` of its own in torch.distributed, with the same arithmetic.
        self.decides = of("_maybe_opt_step") == GradScaler.__module__ and of("update").startswith(
            "torch."
        )
        """Whether `step` and `update` are torch's own, so they can be followed, and nothing else moves the scale."""
        self._failed = failed
        self._request = read
        self._last: tuple[AnyReading, Stamp, Tensors] | None = None
        """The state after the newest update, with the stamp of the tensors that hold it on a device, and these tensors.
        They are kept alive so that no other tensor gets their ids."""
        self._known: Reading | None = None
        """The state before the current update, if the host knows it."""

    def decide(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[torch.device, torch.Tensor] | None]:
        """Bring an optimizer's found_inf to the host. Return its state with the host copies, and the non-zero flags.

        The flags are by device. They are None if nothing was brought: all is on the host already, or the scaler cannot
        be followed. Waits for each device once, as the stock step does. Raises what that raises.
        """
        flags: dict[torch.device, torch.Tensor] = state["found_inf_per_device"]
        if not self.decides:
            return state, None
        host, overflowed, on_host = {}, {}, True
        for device, flag in flags.items():
            value = flag.item()
            host[device] = _NOTHING
            if value:
                host[device] = torch.full((1,), value, device="cpu")
                overflowed[device] = flag
            on_host = on_host and flag.is_cpu
        return (state, None) if on_host else ({**state, "found_inf_per_device": host}, overflowed)

    def before(self, scaler: Any, iteration: Iteration) -> AnyReading:
        """The state before `update()`, with what it found for the optimizers that stepped. Waits for no device."""
        last, self._known, found = self._last, None, iteration.found
        if found:
            # `update()` also counts optimizers that were unscaled and not stepped.
            states = scaler._per_optimizer_states.items()
            if all(each in found for each, state in states if state["found_inf_per_device"]):
                iteration.overflowed = any(found.values())
        if self.decides and last is not None and last[1] == stamp(scaler):
            if not found:
                flags = outcome.flags(scaler, iteration.steps)
                if flags is not None:
                    return ReadingBefore(last[0], Readback(flags[0], behind=flags[1:]))
            elif iteration.overflowed is not None and last[0].ready():
                known = self._known = last[0].result()
                # The record of a sample waits for a device in any case.
                if not iteration.sampling:
                    steps = [found.get(each, False) for each in iteration.steps]
                    return Reading(known.scale, known.growth_tracker, steps)
        return self._request(scaler, iteration.steps)

    def after(
        self, scaler: Any, iteration: Iteration, *, manual: bool
    ) -> tuple[AnyReading, Callable[[Reading], None]]:
        """The state after `update()`, and a function to call with it once it is known. Waits for no device."""
        before, known, check = iteration.before, self._known, nothing
        after: AnyReading | None = None
        if not manual and isinstance(before, ReadingBefore):
            check = partial(self._check, FollowedReading(before, outcome.rules(scaler)))
        elif not manual and known is not None and iteration.overflowed is not None:
            state = known.scale, known.growth_tracker
            after = Reading(*moved(state, iteration.overflowed, outcome.rules(scaler)), [])
            if iteration.sampling:
                check, after = partial(self._check, after), None
        self._last = None
        if after is None:
            after = self._request(scaler, ())
            if isinstance(after, Reading):
                return after, check
        self.resume(after, (scaler._scale, scaler._growth_tracker))
        return after, check

    def resume(
        self, last: AnyReading, tensors: Tensors, versions: tuple[int, int] | None = None
    ) -> None:
        """Go on after the newest update: the state that it left, the tensors, and their versions then or now."""
        scale, tracker = tensors
        first, second = versions or (scale._version, tracker._version)
        self._last = last, (id(scale), first, id(tracker), second), tensors

    def _check(self, expected: AnyReading, actual: Reading) -> None:
        """Compare a followed state with the device's. May run on any thread."""
        ours, theirs = ((each.scale, each.growth_tracker) for each in (expected.result(), actual))
        if repr(ours) != repr(theirs):  # so NaN equals NaN
            words = f"{ours} is {theirs[0]}, {theirs[1]} on the device"
            self._failed("following the scale", ValueError(words))
            self.decides = False


def nothing(_: Reading) -> None:
    """Ignore the state."""


def moved(state: State, found: bool, rules: Rules) -> State:
    """The state after `torch._amp_update_scale_`. An fp32 scale times an fp64 factor is rounded to fp32."""
    scale, tracker = state
    growth_factor, backoff_factor, growth_interval = rules
    if found:
        return _times(scale, backoff_factor), 0
    # torch tests for equality too: an interval set below the tracker lets the scale never grow.
    if tracker + 1 != growth_interval:
        return scale, tracker + 1
    # As in torch, a scale that would be infinite stays, and the count starts again.
    grown = _times(scale, growth_factor)
    return (grown if math.isfinite(grown) else scale), 0


def _times(scale: float, factor: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(scale * factor))


def stamp(scaler: Any) -> Stamp:
    """A value that changes whenever a scaler's tensors are written to or replaced."""
    scale, tracker = scaler._scale, scaler._growth_tracker
    return id(scale), scale._version, id(tracker), tracker._version
