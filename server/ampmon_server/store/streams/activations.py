"""What a record says of activations, taken apart and checked: statistics by module, and where overflow began. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ampmon import wire
from ampmon.numerics.histogram import Floats, Ints, Statistics
from ampmon_server.store.pages.packing import Sample


Origin: TypeAlias = wire.ForwardOrigin | Literal["backward"]


def origin_of(
    update: wire.Update, activations: ModuleActivations | None
) -> tuple[Origin | None, int | None]:
    """Where the overflow of a skipped update began, and in which module, as far as that is known."""
    if update.origin is not None:
        return update.origin, update.origin_module
    if activations is not None:
        return activations.origin(update.loss)
    # Of a loss that is not finite, nobody saw where it was lost.
    return (None if update.loss in (None, "not_finite") else "backward"), None


@dataclass(frozen=True, slots=True)
class ModuleActivations:
    """n modules in the order in which the forward pass left them, as `ampmon.wire.Activations` describes them."""

    statistics: Statistics
    elements: Ints
    forward: Floats
    loss: float | None

    @classmethod
    def from_wire(cls, record: wire.Activations) -> ModuleActivations:
        """Raises ValueError, naming the field, for lengths or counts that cannot be."""
        statistics = Statistics.from_wire(record.gradients)
        for name in ("elements", "forward"):
            if len(getattr(record, name)) != 8 * len(statistics):
                raise ValueError(f"{name}: not {len(statistics)} 8-byte elements")
        elements = np.frombuffer(record.elements, "<i8")
        if (elements < statistics.looked).any() or (elements > wire.COUNT_MAX).any():
            raise ValueError("elements: fewer than were looked at, or more than can be")
        return cls(statistics, elements, np.frombuffer(record.forward, "<f8"), record.loss)

    def origin(self, loss: wire.LossState | None) -> tuple[Origin, int | None]:
        """Where the overflow of a skipped update began, and in which module, if one was seen.

        Forward it is the first to put out what is not finite; backward the one that made a gradient so.

        A loss that is not finite overflowed in forward, whatever outputs were seen. One that is finite did not, unless
        all that comes back is NaN: an infinite output that was squashed, by a tanh say, is 0 times infinity then.
        """
        in_forward = self._places(~np.isfinite(self.forward))
        lost = loss == "not_finite"
        if loss is None:  # an older client states the loss here, if at all
            lost = bool(in_forward) if self.loss is None else not math.isfinite(self.loss)
        squashed = bool(in_forward) and self.statistics.nan.any() and not self.statistics.inf.any()
        if lost or squashed:
            return "forward", in_forward[0] if in_forward else None
        # Backward goes the other way: the gradient that came back to the last such output was made by what follows it.
        in_backward = np.flatnonzero((self.statistics.inf + self.statistics.nan) > 0)
        if not len(in_backward):
            return "backward", None
        maker = min(int(in_backward[-1]) + 1, len(self.statistics) - 1)
        return "backward", int(self.statistics.parameters[maker])

    def _places(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
        places: list[int] = self.statistics.parameters[chosen].tolist()
        return places

    def sample(self, step: int, update: wire.Update) -> Sample:
        beside = {"elements": self.elements, "forward": self.forward}
        return Sample(step, update.time, update.scale, self.statistics, beside)
