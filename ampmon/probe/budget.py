"""When to sample: within a share of the training time, and always after the scale has changed. Reads no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from statistics import median, median_low
from typing import Literal

from ampmon.config import EVERY_MAX


_SLOWEST = 1 << (EVERY_MAX.bit_length() - 1)
_PERIODS = 32
_SAMPLES = 5
_STRETCH = 4
"""A sample makes the interval at most so many times as long: one slow sample is not believed at once."""
_SPARE = 1.25
"""The interval becomes shorter only where that leaves so much room, lest it go to and fro."""
_CAP = 3.0
_SMOOTHING = 1 / 64


class _Typical:
    """The mean of the newest values, each counted at most as three medians: one pause is not the pace.

    The very first value is left out as soon as there is another, for it pays for what is done once.
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
        """Zero where nothing is known."""
        if not self._values:
            return 0.0
        most = _CAP * self._middle(self._values)
        return sum(min(value, most) for value in self._values) / len(self._values)


class _Cost:
    """What an update of one kind takes, in us: on the training thread, and of the device's time."""

    __slots__ = ("device", "host")

    def __init__(self, size: int) -> None:
        # Of two values the lower, for a first cold one to weigh little.
        self.host = _Typical(size, median_low)
        self.device = _Typical(size, median_low)

    def value(self) -> float:
        return self.host.value() + self.device.value()


class Budget:
    """Decides which updates are sampled.

    With ``every="auto"`` the spacing is the least power of two that keeps the monitor's cost within ``budget`` of the
    training's own time, at most 128 updates. What updates cost that are not sampled, what is spent on other things, and
    samples out of turn leave less room for the samples in turn. Multiples of powers of two coincide, so ranks that
    adapt apart still have samples of the same updates to add up.
    """

    def __init__(self, every: int | Literal["auto"], budget: float) -> None:
        self.share = budget if every == "auto" else None
        """The budget; None where the interval is fixed, and keeps to none."""
        self.every = 1 if every == "auto" else every
        """Updates between samples."""
        self.exceeded = False
        """Whether even the rarest sampling, and that after changes of the scale, costs more than the budget."""
        self._period = _Typical(_PERIODS)
        self._sampled, self._bare = _Cost(_SAMPLES), _Cost(_PERIODS)
        self._beside = self._out_of_turn = 0.0
        self._in_turn = True
        # A reader's thread counts changes, the training's what it has seen of them: neither undoes the other's.
        self._changes, self._noticed, self._answered = 1, 0, 0

    def due(self, ordinal: int, *, spare: bool = False) -> bool:
        """Whether the update with this ordinal is to be sampled.

        ``spare``: something can be learned only from an update that is not. One is spared then, where all are sampled.
        """
        self._noticed = self._changes
        self._in_turn = ordinal % self.every == 0
        if self._noticed != self._answered:
            return True
        return self._in_turn and not (spare and self.every == 1 and self.share is not None)

    def until_due(self, ordinal: int) -> int:
        """How many updates from this ordinal on are not to be sampled, as far as that is known now."""
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
        """Take note of an update, or of the means of so many that were not sampled.

        ``duration`` is the time since the one before, None for the first; ``cost`` what gradients and records took of
        it on the training thread, and ``beside`` what anything else of the monitor's did. All in us.
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
        self._answered = self._noticed
        self._sampled.host.add(cost)
        self._adapt()

    def device(self, cost: float, *, sampled: bool) -> None:
        """Take note of what an update, sampled or not, took of a device's time, in us."""
        (self._sampled if sampled else self._bare).device.add(cost)

    def scale_changed(self) -> None:
        """The scale has moved: the next update is to be sampled. May be called on another thread."""
        self._changes += 1

    def _adapt(self) -> None:
        allowed = self._allowed()
        if allowed is None:
            return
        bare = self._bare.value()
        excess = max(self._sampled.value() - bare, 0.0)
        room = allowed - bare - self._beside - self._out_of_turn * excess
        # Where all are sampled, nothing is known of those that are not: their cost is then in the samples'.
        every = _power_of_two(excess, room)
        if every < self.every:
            every = min(self.every, _power_of_two(_SPARE * excess, room))
        self.every = min(every, _STRETCH * self.every)
        self.exceeded = self.every == _SLOWEST and excess > _SLOWEST * room

    def _allowed(self) -> float | None:
        period = self._period.value()
        return self.share * period if self.share is not None and period else None


def _power_of_two(cost: float, room: float) -> int:
    """The least power of two, at most 128, that spreads a cost so thin that it fits the room of one update."""
    every = 1
    while every * room < cost and every < _SLOWEST:
        every *= 2
    return every
