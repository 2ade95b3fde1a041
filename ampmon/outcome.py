"""Reads a scaler's state around `update()`, without waiting for the device, and says why the scale moved.

Knows the private members of torch's scalers, and does with the public ones where a vendor's subclass lacks them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampmon import wire
from ampmon.probe.ring import Readback


DEAD_SCALE = 2.0**-128
"""From here down ``1/scale`` is not finite in fp32, and unscaling destroys finite gradients."""


class Reading:
    """Scale, growth tracker and what each optimizer found, at one moment; on CUDA, on the way to the host."""

    __slots__ = ("_copy", "_values")

    def __init__(self, values: list[float] | None, copy: Readback | None = None) -> None:
        self._values = values
        self._copy = copy

    def ready(self) -> bool:
        """Whether the values are on the host. Does not wait."""
        return self._copy is None or self._copy.ready()

    @property
    def values(self) -> list[float]:
        if self._values is None:
            assert self._copy is not None
            self._values = self._copy.result().tolist()
        return self._values

    @property
    def scale(self) -> float:
        return self.values[0]

    @property
    def growth_tracker(self) -> int:
        return int(self.values[1])

    def found(self) -> list[bool]:
        """For each optimizer asked about, whether its gradients were not finite."""
        return [value != 0 for value in self.values[2:]]


def read(scaler: Any, optimizers: Sequence[int]) -> Reading:
    """The scaler's state now, with what it found for the optimizers with these ids. Copies: `update()` adds into the
    found_inf tensors in place. On CUDA nothing waits.
    """
    scale, tracker = getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)
    if scale is None or tracker is None:
        return Reading([float(scaler.get_scale()), 0.0, *(0.0 for _ in optimizers)])
    states = getattr(scaler, "_per_optimizer_states", {})
    found = [_found(states, optimizer) for optimizer in optimizers]
    if scale.device.type == "cpu" and all(
        flag.device.type == "cpu" for flags in found for flag in flags
    ):
        return Reading(
            [scale.item(), tracker.item(), *(sum(flag.item() for flag in flags) for flags in found)]
        )
    parts = [scale.reshape(1), tracker.reshape(1).to(torch.float32)]
    for flags in found:
        total = torch.zeros(1, dtype=torch.float32, device=scale.device)
        for flag in flags:
            total = total + flag.reshape(1).to(scale.device, torch.float32, non_blocking=True)
        parts.append(total)
    return Reading(None, Readback(torch.cat(parts)))


def _found(states: Any, optimizer: int) -> list[torch.Tensor]:
    # The scaler's dict makes an entry for whoever asks: look without asking.
    return list(states[optimizer]["found_inf_per_device"].values()) if optimizer in states else []


@dataclass(frozen=True, slots=True)
class Rules:
    """What `update()` went by."""

    manual: bool
    growth_interval: int
    infers_skips: bool

    @classmethod
    def of(cls, scaler: Any, manual: bool) -> Rules:
        interval = getattr(scaler, "_growth_interval", 0)
        return cls(manual, int(interval), not hasattr(scaler, "_per_optimizer_states"))

    def event(self, before: Reading, after: Reading) -> wire.UpdateEvent:
        """Why the scale moved from one reading to the other."""
        if is_dead(after.scale):
            return "dead"
        if self.manual:
            return "manual_set"
        if any(before.found()) or after.scale < before.scale:
            return "backoff"
        if after.scale > before.scale:
            return "grow"
        due = self.growth_interval > 0 and before.growth_tracker + 1 >= self.growth_interval
        return "grow_capped" if due and after.growth_tracker == 0 else "steady"

    def skipped(self, before: Reading, event: wire.UpdateEvent) -> list[bool]:
        """For each optimizer, whether its step was skipped: what the scaler found, never inferred from the scale.

        Only a vendor's scaler that keeps no record of what it found leaves nothing but the back-off to go by.
        """
        found = before.found()
        return [event == "backoff"] * len(found) if self.infers_skips else found


def is_invertible(inv_scale: float) -> bool:
    """Whether unscaling by this factor leaves finite gradients finite and others as they are."""
    return 0.0 < inv_scale < math.inf


def is_dead(scale: float) -> bool:
    """Whether ``1/scale`` is not finite in fp32: at most 2^-128, or NaN."""
    return not scale > DEAD_SCALE


def is_sharded_scaler(scaler: Any) -> bool:
    """Whether this is FSDP's ShardedGradScaler or a subclass, told without importing it."""
    return any(cls.__name__ == "ShardedGradScaler" for cls in type(scaler).__mro__)


def describe(
    scaler: Any,
    *,
    stream: str,
    layout: wire.Layout,
    sample: int | None,
    parameters: tuple[wire.Parameter, ...],
) -> wire.StreamHeader:
    """The header of a scaler's stream. Reads no tensor."""
    return wire.StreamHeader(
        stream=stream,
        layout=layout,
        scaler=_class_name(scaler),
        device=str(getattr(scaler, "_device", "unknown")),
        enabled=bool(scaler.is_enabled()),
        init_scale=_finite(getattr(scaler, "_init_scale", 65536.0)),
        growth_factor=_finite(getattr(scaler, "_growth_factor", 2.0)),
        backoff_factor=_finite(getattr(scaler, "_backoff_factor", 0.5)),
        growth_interval=max(int(getattr(scaler, "_growth_interval", 2000)), 0),
        sample=sample,
        parameters=parameters,
    )


def _finite(value: Any) -> float:
    number = float(value)
    return number if math.isfinite(number) else 0.0


def _class_name(scaler: Any) -> str:
    """The class that the scaler was made as, not the one put in its place to watch it."""
    cls = type(scaler).__dict__.get("_ampmon_base", type(scaler))
    return f"{cls.__module__}.{cls.__qualname__}"[:256]
