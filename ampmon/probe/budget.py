"""When to sample: within a share of the training time, and always after the scale has changed. Reads no clock."""

from __future__ import annotations

from typing import Literal

from ampmon.config import EVERY_MAX


_WEIGHT = 0.25
_SLOWEST = 1 << (EVERY_MAX.bit_length() - 1)


class Budget:
    """Decides which updates are sampled.

    With ``every="auto"`` the spacing is the least power of two that keeps samples within ``budget`` of the time between
    updates, at most 128 updates. Multiples of powers of two coincide, so ranks that adapt apart still have samples of
    the same updates to add up.
    """

    def __init__(self, every: int | Literal["auto"], budget: float) -> None:
        self._fixed = every if every != "auto" else None
        self._share = budget
        self._cost: float | None = None
        self._period: float | None = None
        self._after_change = True
        self.every = self._fixed or 1

    def due(self, ordinal: int) -> bool:
        """Whether the update with this ordinal is to be sampled."""
        return self._after_change or ordinal % self.every == 0

    def sampled(self, cost: float) -> None:
        """Take note of a sample and its cost, in us of the training thread."""
        self._after_change = False
        self._cost = _blend(self._cost, cost)
        if self._fixed is None and self._period:
            self.every = _power_of_two(self._cost / (self._share * self._period))

    def period(self, duration: float | None) -> None:
        """Take note of an update: us since the one before, None for the first."""
        if duration is not None:
            self._period = _blend(self._period, duration)

    def scale_changed(self) -> None:
        """The scale has moved: the next update is to be sampled."""
        self._after_change = True

    @property
    def exceeded(self) -> bool:
        """Whether even the rarest sampling costs more than the budget."""
        if self._cost is None or not self._period:
            return False
        return self._cost / (self.every * self._period) > self._share


def _blend(old: float | None, new: float) -> float:
    return new if old is None else (1 - _WEIGHT) * old + _WEIGHT * new


def _power_of_two(least: float) -> int:
    every = 1
    while every < least and every < _SLOWEST:
        every *= 2
    return every
