"""Finds what made a step be skipped: gradients and losses that are not finite."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon.numerics.sampling_error import Ints
from ampmon.probe.gradients import MEASURED, PLAIN, local_elements
from ampmon.probe.ring import JoinedReadback, Readback, ReadbackPart
from ampmon.wire import Culprit


def count(gradients: Sequence[torch.Tensor], indices: Sequence[int]) -> list[Culprit]:
    """Return the gradients with inf or NaN elements, and their counts. Reads every element: for skips on a CPU."""
    culprits = []
    for index, gradient in zip(indices, gradients, strict=True):
        if torch.isfinite(gradient).all():
            continue
        nan = int(torch.isnan(gradient).sum())
        inf = int(torch.isinf(gradient).sum())
        culprits.append(Culprit(index, inf, nan))
    return culprits


def flag(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the largest magnitude in each of n gradients of one device, float32 [n]. Only enqueues work.

    It is NaN if any element is.
    """
    return torch.stack(torch._foreach_norm(list(gradients), math.inf)).float()


def from_flags(magnitudes: torch.Tensor, indices: Sequence[int]) -> list[Culprit]:
    """Return the culprits in a host copy of `flag`'s result: which gradients and which kind, without counts.

    A NaN hides the infs in the same gradient, so inf stays unknown there.
    """
    culprits = []
    for index, magnitude in zip(indices, magnitudes.tolist(), strict=True):
        if math.isnan(magnitude):
            culprits.append(Culprit(index, None, None))
        elif math.isinf(magnitude):
            culprits.append(Culprit(index, None, 0))
    return culprits


def from_counts(counts: torch.Tensor | Ints, indices: Sequence[int]) -> list[Culprit]:
    """Return the culprits among n gradients, from counts of their inf and NaN: int64 [n, 2], on the host."""
    return [
        Culprit(index, inf, nan)
        for index, (inf, nan) in zip(indices, counts.tolist(), strict=True)
        if inf or nan
    ]


def from_statistics(statistics: Statistics) -> list[Culprit]:
    """Return the culprits, from statistics that cover every element of each gradient."""
    counts = np.stack([statistics.inf, statistics.nan], axis=1)
    return from_counts(counts, statistics.parameters.tolist())


ELEMENTS_MAX = 1024
"""The most elements of a loss, and the most losses of an update, that are kept. Others are unknown."""

LOSSES_MAX = 7
"""The most losses of an update that are copied one by one. More take less time if a kernel joins them first."""

Kept: TypeAlias = torch.Tensor | weakref.ref[torch.Tensor] | None
"""None stands for a loss that was not kept."""


def keep(losses: list[Kept], outputs: Any) -> None:
    """Keep the loss or losses passed to `scale()`. Reads no value and enqueues nothing."""
    if isinstance(outputs, torch.Tensor):
        small = outputs.numel() <= ELEMENTS_MAX and len(losses) < ELEMENTS_MAX
        # Detached, because a graph may hold much memory until the update.
        plain = local_elements(outputs) if small else outputs
        readable = small and type(plain).__torch_dispatch__ is PLAIN
        if readable and is_functorch_wrapped_tensor(plain):
            readable = not _is_batch(plain)
        losses.append(plain if readable else None)
    elif isinstance(outputs, (list, tuple)):
        for each in outputs:
            keep(losses, each)
    else:
        losses.append(None)


def _is_batch(loss: torch.Tensor) -> bool:
    """Whether it stands for a batch of losses within `vmap`. Once that returns, no function takes it."""
    while is_functorch_wrapped_tensor(loss):
        if is_batchedtensor(loss):
            return True
        loss = get_unwrapped(loss)
    return False


class LossCopy:
    """The losses of one update on their way to the host. Only `state` waits for a device."""

    def __init__(self, losses: Iterable[Kept]) -> None:
        known: dict[tuple[torch.device, torch.dtype, torch.dtype], list[torch.Tensor]] = {}
        self._copies: list[tuple[torch.dtype, Readback | ReadbackPart]]
        self._complete = True
        for kept in losses:
            each = kept() if isinstance(kept, weakref.ref) else kept
            if each is None or each.numel() > ELEMENTS_MAX or each.dtype not in MEASURED:
                self._complete = False
                continue
            # The scale is an fp32 tensor without dimensions, so it affects the product's dtype only for a loss
            # without dimensions.
            scaled = each.dtype if each.dim() else torch.promote_types(each.dtype, torch.float32)
            known.setdefault((each.device, each.dtype, scaled), []).append(each.reshape(-1))
        self._copies = [
            (scaled, Readback(parts[0] if len(parts) == 1 else torch.cat(parts)))
            for (_, _, scaled), parts in known.items()
        ]

    @classmethod
    def part(cls, copy: ReadbackPart) -> LossCopy:
        """All losses of an update, in a copy that holds more than these."""
        losses = cls(())
        losses._copies.append((torch.float32, copy))
        return losses

    def ready(self) -> bool:
        return all(copy.ready() for _, copy in self._copies)

    def state(self, scale: float) -> wire.LossState | None:
        """Return whether all losses were finite, and whether their products with the scale were.

        Returns None if some losses are unknown and all known ones are finite. Waits for values not yet on the host.
        """
        overflowed = False
        for scaled, copy in self._copies:
            values = copy.result()
            if not torch.isfinite(values).all():
                return "not_finite"
            overflowed |= not torch.isfinite(values.to(scaled) * scale).all()
        if not (self._complete and self._copies):
            return None
        return "overflowed" if overflowed else "finite"


def join(losses: Iterable[Kept], copy: JoinedReadback, device: torch.device) -> LossCopy | None:
    """Add an update's losses to a joined copy, if all are fp32 with one element on its ``device``. Does not wait."""
    living = [each() if isinstance(each, weakref.ref) else each for each in losses]
    # Detached, which takes less time than `no_grad` around their copies.
    alike = [each.detach() for each in living if each is not None and _is_like(each, device)]
    whole = alike and len(alike) == len(living)
    return LossCopy.part(copy.add(alike)) if whole else None


def _is_like(loss: torch.Tensor, device: torch.device) -> bool:
    return loss.dtype is torch.float32 and loss.device == device and loss.numel() == 1
