"""What `scale()` was given since the last update, kept until a skip asks whether it was finite. Keeps no graph.

A detached tensor takes a microsecond, a weak reference a sixth of that: it is enough where a training has its losses at
hand until an update ends.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from ampmon import wire
from ampmon.probe.gradients import MEASURED, local_elements
from ampmon.probe.ring import Readback


ELEMENTS_MAX = 1024
"""Elements of a loss that is kept, and losses of one update: what is larger or beyond is not known."""

Kept: TypeAlias = torch.Tensor | weakref.ref[torch.Tensor] | None
"""None stands for what was not kept."""
_PLAIN = torch.Tensor.__torch_dispatch__
"""Of tensors that hold their own numbers: others are wrapped around some, and mean what their class says."""


def keep(losses: list[Kept], outputs: Any) -> None:
    """Keep a loss, or several, that `scale()` is being called with. Reads and enqueues nothing."""
    if isinstance(outputs, torch.Tensor):
        small = outputs.numel() <= ELEMENTS_MAX and len(losses) < ELEMENTS_MAX
        # Detached: a graph may hold much until the update.
        plain = local_elements(outputs) if small else outputs
        losses.append(plain if small and type(plain).__torch_dispatch__ is _PLAIN else None)
    elif isinstance(outputs, (list, tuple)):
        for each in outputs:
            keep(losses, each)
    else:
        losses.append(None)


class LossCopy:
    """The losses of one update on their way to the host. Waits for no device until it is asked for the state."""

    def __init__(self, losses: Iterable[Kept]) -> None:
        known: dict[tuple[torch.device, torch.dtype, torch.dtype], list[torch.Tensor]] = {}
        self._complete = True
        for kept in losses:
            each = kept() if isinstance(kept, weakref.ref) else kept
            if each is None or each.numel() > ELEMENTS_MAX or each.dtype not in MEASURED:
                self._complete = False
                continue
            # The scale is an fp32 tensor without dimensions: it decides the product's dtype for another such alone.
            scaled = each.dtype if each.dim() else torch.promote_types(each.dtype, torch.float32)
            known.setdefault((each.device, each.dtype, scaled), []).append(each.reshape(-1))
        self._copies = [(scaled, _fetched(parts)) for (_, _, scaled), parts in known.items()]

    def ready(self) -> bool:
        """Whether the values are on the host. Does not wait."""
        return all(copy.ready() for _, copy in self._copies)

    def state(self, scale: float) -> wire.LossState | None:
        """Whether all were finite, and their products with the scale; None where that is not known of all."""
        overflowed = False
        for scaled, copy in self._copies:
            values = copy.result()
            if not torch.isfinite(values).all():
                return "not_finite"
            overflowed |= not torch.isfinite(values.to(scaled) * scale).all()
        if not (self._complete and self._copies):
            return None
        return "overflowed" if overflowed else "finite"


def _fetched(parts: list[torch.Tensor]) -> Readback:
    return Readback(parts[0] if len(parts) == 1 else torch.cat(parts))
