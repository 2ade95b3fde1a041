"""Encodes updates that differ only in a few numbers from a template: encoding an object takes longer."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

from ampmon import wire


# Markers stand for the numbers, in the order of the record's fields. Each has a byte 0xff, which no UTF-8 text has, so
# no name looks like one. They are so large that msgpack gives them eight bytes.
_MARKERS = {
    "seq": ("Q", 2**64 - 1),
    "ordinal": ("Q", 2**64 - 2),
    "time": ("Q", 2**64 - 3),
    "growth_tracker": ("q", -(2**56)),
    "duration": ("d", -(2.0**1023)),
    "cost": ("d", -(2.0**1022)),
}


class SteadyUpdates:
    """Encodes the updates of a stream that keep ``scale`` and take the same ``steps``, none of them skipped.

    A reader gets the record that `wire.encode` would give it.
    """

    __slots__ = ("_pack", "_parts", "scale", "steps")

    def __init__(self, stream: str, scale: float, steps: tuple[wire.OptimizerStep, ...]) -> None:
        self.scale = scale
        self.steps = steps
        markers: dict[str, Any] = {name: marker for name, (_, marker) in _MARKERS.items()}
        encoded = wire.encode(wire.Update(stream=stream, **self.fields(), **markers))
        parts, layout, at = [], ">", 0
        for code, marker in _MARKERS.values():
            found = encoded.index(struct.pack(f">{code}", marker), at)
            parts.append(encoded[at:found])
            layout += f"{found - at}s{code}"
            at = found + 8
        assert at == len(encoded), "a field follows the numbers"
        self._parts = parts
        self._pack = struct.Struct(layout).pack

    def fields(self, *numbers: float) -> dict[str, Any]:
        """The fields of `wire.Update`, without stream, seq and time. ``numbers`` are as `encode` has them."""
        fields = dict(zip(("ordinal", "growth_tracker", "duration", "cost"), numbers, strict=False))
        scales = {"scale": self.scale, "scale_after": self.scale}
        return {**fields, **scales, "event": "steady", "optimizers": self.steps}

    def encode(
        self,
        seq: int,
        time: int,
        ordinal: int,
        growth_tracker: int,
        duration: float,
        cost: float,
    ) -> bytes:
        """Return the msgpack bytes of an update with these numbers."""
        # Written out, because a loop takes three times as long.
        first, second, third, fourth, fifth, sixth = self._parts
        return self._pack(
            first,
            seq,
            second,
            ordinal,
            third,
            time,
            fourth,
            growth_tracker,
            fifth,
            duration,
            sixth,
            cost,
        )


steady_updates = lru_cache(maxsize=64)(SteadyUpdates)
"""Return the template for a stream, scale and steps. Cached, since mostly few recur."""
