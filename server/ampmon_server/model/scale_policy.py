"""The policy of a scaler: how it moves its scale."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


INIT_SCALE = 65536.0
"""Torch's default initial scale."""
DEAD, ENDLESS = -128, 128
"""log2 of the largest dead scale, of which 1/scale is not finite in fp32, and of the first that is too large for fp32.

Charts draw all smaller scales and 0 at the first, and inf at the second.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePolicy:
    """How a scaler moves its scale, as reported by its newest attempt. ``arguments`` are the script's own, as code."""

    scaler_type: str = "ampmon.client.scaler.GradScaler"
    device: str = "cuda"
    layout: str = "replicated"
    init_scale: float = INIT_SCALE
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    arguments: Mapping[str, str] | None = None
    watched: bool = False

    @property
    def hysteresis(self) -> int:
        """How many overflows since the last growth lower the scale. Each later one lowers it too. Torch's is 1."""
        return int(self._further("hysteresis") or 1)

    @property
    def consecutive(self) -> bool:
        """Whether `hysteresis` counts overflows in a row instead."""
        return bool(self._further("consecutive"))

    @property
    def min_scale(self) -> float:
        """The lowest scale. Torch's is 0."""
        return self._further("min_scale") or 0.0

    def _further(self, name: str) -> float | None:
        """A setting that torch's scaler lacks. `ampmon.Policy` appends it to the scaler's type."""
        # Few digits only: the type is a client's text, and an infinite number has no int().
        found = re.search(
            rf"\b{name}=(\d{{1,20}}(\.\d{{1,20}})?(e[+-]\d{{1,2}})?)[,)]", self.scaler_type
        )
        return float(found[1]) if found else None
