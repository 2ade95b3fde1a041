"""Checks weights and optimizer states once for inf and NaN. On a device the check is only enqueued."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from ampmon.lints.optimizers import state_of
from ampmon.lints.reporter import LintReporter
from ampmon.probe.gradients import local_elements
from ampmon.probe.ring import Readback


NameOf = Callable[[torch.Tensor], str]


@dataclass(slots=True)
class PendingLook:
    """Flags of finite tensors, which may still be on their way to the host."""

    reporter: LintReporter
    names: list[list[str]]
    flags: list[Readback]
    brief = False

    def ready(self) -> bool:
        return all(flags.ready() for flags in self.flags)

    def write(self) -> None:
        poisoned = [
            name
            for names, flags in zip(self.names, self.flags, strict=True)
            for name, finite in zip(names, flags.result().tolist(), strict=True)
            if not finite
        ]
        if poisoned:
            self.reporter.say("poisoned_state", list(dict.fromkeys(poisoned)), count=len(poisoned))


def look(
    optimizers: Iterable[torch.optim.Optimizer], name_of: NameOf, reporter: LintReporter
) -> PendingLook:
    """Start to check the optimizers' weights and states, in one pass. Does not wait for a device."""
    by_device: dict[torch.device, tuple[list[str], list[torch.Tensor]]] = {}
    for optimizer in optimizers:
        for name, tensor in _held(optimizer, name_of):
            names, flags = by_device.setdefault(tensor.device, ([], []))
            names.append(name)
            flags.append(tensor.isfinite().all())
    parts = by_device.values()
    copies = [Readback(torch.stack(flags)) for _, flags in parts]
    return PendingLook(reporter, [names for names, _ in parts], copies)


def _held(optimizer: torch.optim.Optimizer, name_of: NameOf) -> Iterator[tuple[str, torch.Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = name_of(parameter)
            # Only this rank's part of a sharded tensor: reading all of it would be a collective.
            yield name, local_elements(parameter)
            for value in state_of(optimizer, parameter).values():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    yield name, local_elements(value)
