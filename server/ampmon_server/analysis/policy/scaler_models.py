"""Models how scalers move their scale, each as a small state machine: overflows in, scales out.

The torch machine follows the documentation of `torch.amp.GradScaler`, and tests check that. The others follow the
documentation and sources of Megatron-LM's `DynamicGradScaler`, DeepSpeed's `DynamicLossScaler` and fairseq's
`DynamicLossScaler`, each with that framework's defaults.
"""

from __future__ import annotations

import math
from ctypes import c_float
from typing import Protocol

from ampmon.numerics.formats import FP32


FOREVER = 2**62
"""More updates than any run has."""
_MAX = FP32.max


class ScalerModel(Protocol):
    """A scaler. ``scale`` applies to the next update. ``ended`` says why training cannot go on, None while it can."""

    scale: float
    ended: str | None

    @property
    def until_growth(self) -> int:
        """Updates without an overflow until the scale grows. `FOREVER` if it cannot grow."""
        ...

    def clean(self, updates: int) -> None:
        """Count updates that did not overflow, at most `until_growth`."""
        ...

    def overflow(self) -> None:
        """Count an update that overflowed and is skipped."""
        ...


class Fixed:
    """A scale that never moves."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.ended: str | None = None
        self.until_growth = FOREVER

    def clean(self, updates: int) -> None:
        pass

    def overflow(self) -> None:
        pass


class Growing:
    """Base of scalers that grow by ``factor`` after ``interval`` updates without an overflow."""

    def __init__(self, scale: float, factor: float, interval: int) -> None:
        self.scale = scale
        self.ended: str | None = None
        self._factor = factor
        self._interval = interval if interval > 0 else FOREVER
        self._tracker = 0
        self._capped = False

    @property
    def until_growth(self) -> int:
        return FOREVER if self._capped else self._interval - self._tracker

    def _grows(self, updates: int) -> bool:
        """Count updates without an overflow. Return whether a growth was due, even if the scale stayed at its limit."""
        self._tracker += updates
        if self._tracker < self._interval:
            return False
        grown = _grown(self.scale, self._factor)
        self._capped = grown == self.scale
        self.scale = grown
        self._tracker %= self._interval
        return True

    def _begin(self) -> None:
        """Restart the count after an overflow."""
        self._tracker, self._capped = 0, False


class Torch(Growing):
    """`torch.amp.GradScaler`: no least scale, and growth only up to the largest finite fp32 number."""

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        super().__init__(_clamped(init_scale), growth_factor, growth_interval)
        self._backoff = backoff_factor

    def clean(self, updates: int) -> None:
        self._grows(updates)

    def overflow(self) -> None:
        self._begin()
        self.scale = _clamped(self.scale * self._backoff)
        if self.scale <= 2.0**-128:
            self.ended = "the scale is dead: 1/scale is infinite, and destroys the weights"


class Hysteresis(Growing):
    """Megatron-LM's and DeepSpeed's: the first overflows after a growth leave the scale, and there is a least scale.

    DeepSpeed ``raises`` when it would back off at the least scale. Megatron-LM stays there.
    """

    def __init__(
        self,
        init_scale: float,
        growth_interval: int = 1000,
        minimum: float = 1.0,
        hysteresis: int = 2,
        *,
        raises: bool,
    ) -> None:
        super().__init__(init_scale, 2.0, growth_interval)
        self._minimum, self._raises = minimum, raises
        self._hysteresis = self._left = hysteresis

    def clean(self, updates: int) -> None:
        if self._grows(updates):
            self._left = self._hysteresis

    def overflow(self) -> None:
        self._begin()
        if self._left > 1:
            self._left -= 1
        elif self._raises and self.scale == self._minimum:
            self.ended = "the scaler raises an error: an overflow at the minimum scale"
        else:
            self.scale = max(self.scale / 2.0, self._minimum)


class Fairseq(Growing):
    """fairseq's: backs off once overflows are a share ``tolerance`` of the updates since the scale last moved.

    It raises at the least scale.
    """

    def __init__(
        self,
        init_scale: float = 2.0**15,
        growth_interval: int = 2000,
        minimum: float = 1e-4,
        tolerance: float = 0.0,
    ) -> None:
        super().__init__(init_scale, 2.0, growth_interval)
        self._minimum, self._tolerance = minimum, tolerance
        self._since, self._overflows = 0, 0

    def clean(self, updates: int) -> None:
        self._since += updates
        if self._grows(updates):
            self._since = self._tracker

    def overflow(self) -> None:
        self._begin()
        self._since += 1
        self._overflows += 1
        if self._overflows / self._since >= self._tolerance:
            self.scale /= 2.0
            self._since = self._overflows = 0
            if self.scale <= self._minimum:
                self.ended = "the scaler raises an error: an overflow at the minimum scale"


def _grown(scale: float, factor: float) -> float:
    """The scale after a growth. It stays if fp32 would not be finite."""
    grown = _fp32(scale * factor)
    return grown if math.isfinite(grown) else scale


def _clamped(scale: float) -> float:
    """A scale in fp32, finite: a header may name any number, and an infinite scale has no level."""
    return min(_fp32(scale), _MAX)


def _fp32(value: float) -> float:
    return c_float(value).value  # much faster than numpy's, in the innermost loop
