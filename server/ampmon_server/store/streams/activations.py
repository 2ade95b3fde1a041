"""Decodes and checks the activations of a record: statistics by module, and where an overflow began. Pure."""

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
    """Where the overflow of a skipped update began, and in which module, each None if unknown."""
    if update.origin is not None:
        return update.origin, update.origin_module
    if activations is not None:
        return activations.origin(update.loss)
    # For a non-finite loss, nothing shows where it overflowed.
    return (None if update.loss in (None, "not_finite") else "backward"), None


@dataclass(frozen=True, slots=True)
class ModuleActivations:
    """Activations of n modules, in the order in which the forward pass left them; see `ampmon.wire.Activations`."""

    statistics: Statistics
    elements: Ints
    forward: Floats
    loss: float | None

    @classmethod
    def from_wire(cls, record: wire.Activations) -> ModuleActivations:
        """Decode a record. Raises ValueError, naming the field, for impossible lengths or counts."""
        statistics = Statistics.from_wire(record.gradients)
        for name in ("elements", "forward"):
            if len(getattr(record, name)) != 8 * len(statistics):
                raise ValueError(f"{name}: not {len(statistics)} 8-byte elements")
        elements = np.frombuffer(record.elements, "<i8")
        if (elements < statistics.looked).any() or (elements > wire.COUNT_MAX).any():
            raise ValueError(f"elements: fewer than were sampled, or more than {wire.COUNT_MAX}")
        return cls(statistics, elements, np.frombuffer(record.forward, "<f8"), record.loss)

    def origin(self, loss: wire.LossState | None) -> tuple[Origin, int | None]:
        """Where the overflow of a skipped update began, and in which module, if one was seen.

        In forward it is the first module with a non-finite output, in backward the one that made a gradient non-finite.

        A non-finite loss overflowed in forward, whatever outputs were seen. A finite loss did not, unless only NaN
        comes back: an infinite output squashed by, say, a tanh gives 0 times infinity in backward.
        """
        in_forward = self._places(~np.isfinite(self.forward))
        lost = loss == "not_finite"
        if loss is None:  # an older client sends the loss here, if at all
            lost = bool(in_forward) if self.loss is None else not math.isfinite(self.loss)
        squashed = bool(in_forward) and self.statistics.nan.any() and not self.statistics.inf.any()
        if lost or squashed:
            return "forward", in_forward[0] if in_forward else None
        # Backward runs in reverse: the last non-finite gradient was made by the module that follows in forward order.
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
