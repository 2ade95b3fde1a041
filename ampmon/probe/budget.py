"""Decides when to sample: within a share of the training time, and always after a scale change."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median, median_low
from typing import Literal

from ampmon.config import EVERY_MAX


_SLOWEST = 1 << (EVERY_MAX.bit_length() - 1)
_PERIODS = 32
_SAMPLES = 5
_STRETCH = 4
"""The largest factor by which one sample lengthens the interval, because a single slow sample may mislead."""
_SPARE = 1.25
"""The interval shortens only if the cost times this factor still fits, so that it does not oscillate."""
_CAP = 3.0
_SMOOTHING = 1 / 64


class _Typical:
    """The mean of the newest values, each capped at three medians, so that one pause has little weight.

    The very first value is dropped once there is a second, because it includes one-time costs.
    """

    __slots__ = ("_first", "_middle", "_values")

    def __init__(self, size: int, middle: Callable[[Sequence[float]], float] = median) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._middle = middle
        self._first = True

    def add(self, value: float) -> None:
        if self._first and self._values:
            self._values.clear()
            self._first = False
        self._values.append(value)

    def value(self) -> float:
        """Return the mean, or zero without values."""
        if not self._values:
            return 0.0
        most = _CAP * self._middle(self._values)
        return sum(min(value, most) for value in self._values) / len(self._values)


class _Cost:
    """The cost of an update of one kind, in us: on the training thread and on the device."""

    __slots__ = ("device", "host")

    def __init__(self, size: int) -> None:
        # The low median takes the lower of two values, so a slow first one has little weight.
        self.host = _Typical(size, median_low)
        self.device = _Typical(size, median_low)

    def value(self) -> float:
        return self.host.value() + self.device.value()


class Budget:
    """Decides which updates are sampled.

    With ``every="auto"``, the interval is the least power of two, up to 128 updates, that keeps the monitor's cost
    within ``budget`` of the training's own time. Updates without a sample, the monitor's other work, and samples out of
    turn all leave less room for regular samples. Multiples of powers of two coincide. So ranks that adapt separately
    still have samples of the same updates to add up.
    """

    def __init__(self, every: int | Literal["auto"], budget: float) -> None:
        self.share = budget if every == "auto" else None
        """The budget, a share of the time; None if the interval is fixed."""
        self.every = 1 if every == "auto" else every
        """Updates between samples."""
        self.exceeded = False
        """Whether sampling exceeds the budget even at the longest interval, with the samples after scale changes."""
        self._period = _Typical(_PERIODS)
        self._sampled, self._bare = _Cost(_SAMPLES), _Cost(_PERIODS)
        self._beside = self._out_of_turn = 0.0
        self._in_turn = True
        # The reader thread writes only the first, the training thread only the others: neither loses a write.
        self._changes, self._noticed, self._answered = 1, 0, 0

    def due(self, ordinal: int, *, spare: bool = False) -> bool:
        """Return whether to sample the update with this ordinal.

        ``spare`` says that the caller can learn something only from an update without a sample. If ``"auto"`` would
        sample every update, it then leaves out this one.
        """
        self._noticed = self._changes
        self._in_turn = ordinal % self.every == 0
        if self._noticed != self._answered:
            return True
        return self._in_turn and not (spare and self.every == 1 and self.share is not None)

    def until_due(self, ordinal: int) -> int:
        """Return how many updates from this ordinal on will have no sample, as far as is known now."""
        return 0 if self._changes != self._answered else -ordinal % self.every

    def updated(
        self,
        duration: float | None,
        cost: float,
        *,
        sampled: bool,
        beside: float = 0.0,
        updates: int = 1,
    ) -> None:
        """Record an update, or the means of several ``updates`` without a sample.

        ``duration`` is the time since the previous update, None for the first. ``cost`` is the part that gradients and
        records took on the training thread, and ``beside`` the part of the monitor's other work. All are in us.
        """
        if duration is not None:
            self._period.add(max(duration - cost - beside, 0.0))
        weight = 1 - (1 - _SMOOTHING) ** updates
        self._beside += weight * (beside - self._beside)
        if not sampled:
            self._out_of_turn -= weight * self._out_of_turn
            self._bare.host.add(cost)
            return
        self._out_of_turn += _SMOOTHING * ((not self._in_turn) - self._out_of_turn)
        # A due update may take no sample, as while kernels compile. Then the next one is due.
        self._answered = self._noticed
        self._sampled.host.add(cost)
        self._adapt()

    def device(self, cost: float, *, sampled: bool) -> None:
        """Record the device time of an update, sampled or not, in us."""
        (self._sampled if sampled else self._bare).device.add(cost)

    def scale_changed(self) -> None:
        """Have the next update sampled, because the scale changed. May be called on another thread."""
        self._changes += 1

    def _adapt(self) -> None:
        period = self._period.value()
        if self.share is None or not period:
            return
        bare = self._bare.value()
        excess = max(self._sampled.value() - bare, 0.0)
        room = self.share * period - bare - self._beside - self._out_of_turn * excess
        # If every update is sampled, the cost of one without a sample is unknown, and is part of the samples' cost.
        every = _power_of_two(excess, room)
        if every < self.every:
            every = min(self.every, _power_of_two(_SPARE * excess, room))
        self.every = min(every, _STRETCH * self.every)
        self.exceeded = self.every == _SLOWEST and excess > _SLOWEST * room


def _power_of_two(cost: float, room: float) -> int:
    """Return the least number of updates, a power of two up to 128, over which the cost fits ``room`` per update."""
    every = 1
    while every * room < cost and every < _SLOWEST:
        every *= 2
    return every


_SAVED_NS = 200_000_000
"""The largest balance, and the initial one: overflows are most likely in the first updates."""


class TimeAllowance:
    """Decides whether work may run, for at most ``share`` of the time overall (0 to 1). ``clock`` gives nanoseconds."""

    def __init__(self, share: float, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._share = share
        self._clock = clock
        self._left = float(_SAVED_NS)
        self._looked = clock()
        self._took = 0

    def begin(self) -> int | None:
        """Return the current time if the balance is full or covers the work's last duration, else None.

        With a ``share`` of 1 the work may always run.
        """
        now = self._clock()
        self._left = min(self._left + self._share * (now - self._looked), _SAVED_NS)
        self._looked = now
        return now if self._left >= self._took or self._share >= 1 else None

    def end(self, began: int) -> None:
        """Charge the time since ``began`` to the balance."""
        took = self._clock() - began
        self._left -= took
        # The balance never covers more: a single pause during the work would end it for good.
        self._took = min(took, _SAVED_NS)
