"""A scaler's state before and after each update: read at once on a CPU; followed, or asked for, on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from ampmon.client.iteration import Iteration
from ampmon.client.mirror import Mirror, Stamp, State, stamp
from ampmon.training import outcome
from ampmon.training.outcome import AnyReading, Reading, ReadingBetween, ReadingOnDevice


_NOTHING = torch.zeros(1, device="cpu")
"""What found_inf is on the host where nothing was found. Nobody writes into it."""


class ScaleFollower:
    """Knows a scaler's state from what its optimizers' steps bring to the host; else has the device read.

    A step of an optimizer that is not fused reads found_inf, the one synchronisation of an iteration. With that, scale
    and growth tracker need no reading: they are followed, and checked at each sample by what the device says.
    ``failed`` is called where that is something else.
    """

    def __init__(self, scaler: Any, failed: Callable[[str, Exception], None]) -> None:
        of = partial(outcome.maker, type(scaler))
        self.decides = of("_maybe_opt_step") == GradScaler.__module__ and of("update").startswith(
            "torch."
        )
        """Whether `step` and `update` are torch's, and can be followed."""
        self.mirror = Mirror()
        self._failed = failed
        self._last: tuple[AnyReading, Stamp, tuple[Any, Any]] | None = None
        """The newest reading after an update that the device was asked for, and the tensors it read, with their stamp.
        They are kept, for no other may have their ids."""

    def decide(
        self, state: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[torch.device, torch.Tensor] | None]:
        """An optimizer's state with its found_inf brought to the host, and those by device that show an overflow.

        None for those where nothing was brought: all is on the host, or it is not to be done here. Waits for the
        devices, once each, as the stock step does. Raises what that raises.
        """
        flags: dict[torch.device, torch.Tensor] = state["found_inf_per_device"]
        if not self.decides or all(flag.is_cpu for flag in flags.values()):
            return state, None
        host, overflowed = {}, {}
        for device, flag in flags.items():
            value = flag.item()
            host[device] = _NOTHING
            if value:
                host[device] = torch.full((1,), value, device="cpu")
                overflowed[device] = flag
        return {**state, "found_inf_per_device": host}, overflowed

    def before(self, scaler: Any, iteration: Iteration) -> AnyReading:
        """The state before `update()`, with what it found for the optimizers that stepped. Waits for no device."""
        found = iteration.found
        if found:
            states = scaler._per_optimizer_states.items()
            if all(each in found for each, state in states if state["found_inf_per_device"]):
                iteration.overflowed = any(found.values())
            state = self.mirror.look(scaler)
            # A sample's record waits in any case.
            if state is not None and iteration.overflowed is not None and not iteration.sampling:
                return Reading(*state, [found.get(each, False) for each in iteration.steps])
        elif self.decides and self._last is not None and self._last[1] == stamp(scaler):
            flag = outcome.only_flag(scaler, iteration.steps)
            if flag is not None and flag.device == scaler._scale.device:
                return ReadingBetween(self._last[0], flag)
        return outcome.read(scaler, iteration.steps)

    def after(
        self, scaler: Any, iteration: Iteration, *, manual: bool
    ) -> tuple[AnyReading, Callable[[Reading], None]]:
        """The state after `update()`, and what to call with it once it is known. Waits for no device."""
        if not iteration.found:
            return self._asked(scaler, iteration.before), nothing
        state = self.mirror.follow(scaler, None if manual else iteration.overflowed)
        if state is not None and isinstance(iteration.before, Reading):
            return Reading(*state, []), nothing
        return outcome.read(scaler, ()), partial(self._check, self.mirror.updates, state)

    def _asked(self, scaler: Any, before: AnyReading | None) -> AnyReading:
        """The state after an update, and with it what one before it still asks for."""
        self._last = None
        if isinstance(before, ReadingBetween):
            after: AnyReading = before.ended(scaler._scale, scaler._growth_tracker)
        else:
            after = outcome.read(scaler, ())
        if isinstance(after, ReadingOnDevice):
            self._last = after, stamp(scaler), (scaler._scale, scaler._growth_tracker)
        return after

    def resume(self, last: AnyReading, tensors: tuple[Any, Any], versions: tuple[int, int]) -> None:
        """The device was asked elsewhere: its newest reading after an update, and these tensors' versions then."""
        scale, tracker = tensors
        self._last = last, (id(scale), versions[0], id(tracker), versions[1]), tensors

    def _check(self, update: int, state: State | None, reading: Reading) -> None:
        """The device's word on the state after an update. May be called on another thread."""
        if state is None:
            self.mirror.heard(update, reading)
        elif repr(state) != repr((reading.scale, reading.growth_tracker)):  # a NaN is like another
            self.mirror.distrust()
            actual = f"{reading.scale}, {reading.growth_tracker}"
            self._failed("following the scale", ValueError(f"{state} is {actual} on the device"))


def nothing(_: Reading) -> None:
    """Ignore the state."""
