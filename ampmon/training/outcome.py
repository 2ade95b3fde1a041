"""Reads a scaler's state around `update()`, without waiting for the device, and says why the scale moved.

Uses private members of torch's scalers, or public ones if a vendor's subclass lacks those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.amp.grad_scaler import OptState

from ampmon import wire
from ampmon.probe.pending import Awaited, Pending
from ampmon.probe.ring import Readback


DEAD_SCALE = 2.0**-128
"""At or below this scale, ``1/scale`` is not finite in fp32: unscaling destroys finite gradients."""

DYING_SCALE = 2.0**-64
"""Below this scale, gradients are checked before unscaling: a little lower, that turns finite ones into inf."""

Rules: TypeAlias = tuple[float, float, int]
"""Growth factor, backoff factor, growth interval."""
Flags: TypeAlias = Collection[torch.Tensor]
"""The found_inf tensors of one optimizer, one for each device of its gradients."""

_UNSCALED = OptState.UNSCALED
_PACKAGE = __name__.partition(".")[0]
_TORCHS = OptState.__module__


@dataclass(slots=True)
class Reading:
    """Scale and growth tracker at one moment, and whether each requested optimizer found inf or NaN."""

    scale: float
    growth_tracker: int
    found: list[bool]

    def ready(self) -> bool:
        return True

    def result(self) -> Reading:
        return self


class ReadingOnDevice(Pending[Reading]):
    """A `Reading` on its way to the host, in one copy from each device that has a part of it.

    ``found`` are the found_inf tensors of each requested optimizer. All tensors have one element.
    """

    __slots__ = ()

    def __init__(
        self, scale: torch.Tensor, growth_tracker: torch.Tensor, found: list[Flags]
    ) -> None:
        # fp32 cannot hold every growth tracker exactly, so the bits of its int32 are copied.
        tracker = growth_tracker.to(torch.int32).view(torch.float32)
        values = [scale, tracker, *(flag for flags in found for flag in flags)]
        parts: dict[torch.device, list[torch.Tensor]] = {}
        for value in values:
            float32 = value if value.dtype is torch.float32 else value.to(torch.float32)
            parts.setdefault(value.device, []).append(float32.reshape(1))
        # Tensors on the host are copied too, because `update()` writes into them.
        copies = {
            device: Readback(first, behind=others) for device, (first, *others) in parts.items()
        }
        devices = [value.device for value in values]
        counts = [len(flags) for flags in found]

        def read() -> Reading:
            arrived = {device: iter(copy.result().numpy()) for device, copy in copies.items()}
            scale, growth_tracker, *flags = [next(arrived[device]) for device in devices]
            found = iter([bool(flag != 0) for flag in flags])
            return Reading(
                float(scale),
                int(growth_tracker.view(np.int32)),
                [any(list(islice(found, count))) for count in counts],
            )

        super().__init__(read, *copies.values())

    def ready(self) -> bool:
        """Whether the values are on the host. Does not wait, except on a device without events."""
        if not super().ready():
            return False
        # Read them now: the reader's thread may write this update while the next update's reading builds on this one.
        self.result()
        return True


AnyReading: TypeAlias = Awaited[Reading]
"""A `Reading` that may still be on its way from a device."""


def read(scaler: Any, optimizers: Iterable[int]) -> AnyReading:
    """Read the scaler's state, with what it found for the optimizers with these ids.

    Copies it, because `update()` adds into the found_inf tensors in place. Does not wait for a device.
    """
    state = scaler.__dict__
    scale, tracker = state.get("_scale"), state.get("_growth_tracker")
    if scale is None or tracker is None:
        return Reading(float(scaler.get_scale()), 0, [False for _ in optimizers])
    states = state.get("_per_optimizer_states", {})
    on_host = scale.is_cpu
    found: list[Flags] = []
    values: list[bool] = []
    for optimizer in optimizers:
        # Indexing the scaler's defaultdict would add an entry.
        known = optimizer in states
        flags = states[optimizer]["found_inf_per_device"].values() if known else ()
        found.append(flags)
        value = False
        for flag in flags:
            on_host = on_host and flag.is_cpu
            value = value or (on_host and flag.item() != 0)
        values.append(value)
    if on_host:
        return Reading(scale.item(), tracker.item(), values)
    return ReadingOnDevice(scale, tracker, found)


def flags(scaler: Any, optimizers: Collection[int]) -> list[torch.Tensor] | None:
    """Return the found_inf tensor of each optimizer with one of these ids, all on the device of the scale.

    None if there is another tensor, or none, for one of them, and if there are no ids.
    """
    states = scaler.__dict__.get("_per_optimizer_states", {})
    device = scaler._scale.device
    found: list[torch.Tensor] = []
    for optimizer in optimizers:
        flags = states[optimizer]["found_inf_per_device"] if optimizer in states else {}
        if len(flags) != 1:
            return None
        (flag,) = flags.values()
        if flag.device != device:
            return None
        found.append(flag)
    return found if 0 < len(found) == len(states) else None


def maker(watched: type, method: str) -> str:
    """Return the module that defines a watched class's method below ampmon's: torch, a vendor's or the user's."""
    makers = _makers(watched, method)
    below = next((place for place, name in enumerate(makers, 1) if name.startswith(_PACKAGE)), 0)
    return next(iter(makers[below:]), "")


def is_torchs(watched: type, method: str) -> bool:
    """Return whether no class changes this method of torch's scaler, apart from ampmon's."""
    return {each for each in _makers(watched, method) if not each.startswith(_PACKAGE)} == {_TORCHS}


def _makers(watched: type, method: str) -> list[str]:
    ways = [vars(cls)[method] for cls in watched.__mro__ if method in vars(cls)]
    return [getattr(way, "__module__", "") for way in ways]


def step_path(scaler: Any, optimizer: torch.optim.Optimizer) -> wire.StepPath:
    """Return the path that the current call of `step()` will take."""
    states = scaler.__dict__.get("_per_optimizer_states", ())
    if id(optimizer) in states and states[id(optimizer)]["stage"] is _UNSCALED:
        return "unscaled"
    return "fused" if getattr(optimizer, "_step_supports_amp_scaling", False) else "plain"


def why(before: Reading, after: Reading, manual: bool, growth_interval: int) -> wire.UpdateEvent:
    """Return why the scale moved, or did not, between the readings before and after an `update()`."""
    if not after.scale > DEAD_SCALE:  # NaN is dead too
        return "dead"
    if manual:
        return "manual_set"
    if True in before.found or after.scale < before.scale:
        return "backoff"
    if after.scale > before.scale:
        return "grow"
    due = 0 < growth_interval <= before.growth_tracker + 1
    return "grow_capped" if due and after.growth_tracker == 0 else "steady"


def rules(scaler: Any) -> Rules:
    """The rules by which a scaler changes its scale. They may change while it trains."""
    return (
        getattr(scaler, "_growth_factor", 2.0),
        getattr(scaler, "_backoff_factor", 0.5),
        getattr(scaler, "_growth_interval", 2000),
    )


def keeps_found(scaler: Any) -> bool:
    """Whether the scaler keeps each optimizer's found_inf. If a vendor's does not, only backoffs show skips."""
    return "_per_optimizer_states" in scaler.__dict__


def is_invertible(inv_scale: float) -> bool:
    """Whether unscaling by this factor keeps finite fp16 values finite, and inf and NaN as they are."""
    # fp16 stays below 2^16, so no product reaches fp32's 2^128. A factor of 0 makes NaN of inf.
    return 0.0 < inv_scale < 2.0**100


def is_sharded_scaler(scaler: Any) -> bool:
    """Whether this is FSDP's ShardedGradScaler or a subclass. Does not import it."""
    return any(cls.__name__ == "ShardedGradScaler" for cls in type(scaler).__mro__)
