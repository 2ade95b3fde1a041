"""Keeps account of what the monitor takes of the training's time: by the clock here, by events on devices."""

from __future__ import annotations

import time
from collections.abc import Callable

from ampmon.probe.budget import Budget
from ampmon.probe.timing import DeviceTimer, TimedSpan


class Account:
    """The monitor's cost, update by update, as far as it is known. Times are those of ``clock``, in nanoseconds."""

    def __init__(
        self,
        budget: Budget,
        timer: DeviceTimer,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.clock = clock
        self.budget = budget
        self._timer = timer
        self._busy_us = self._elapsed_us = 0.0
        self._plain = self._plain_ns = self._plain_elapsed_ns = 0
        """Updates of the plain gear since the last that was not, what they cost, and how long they took."""
        self.restart()

    def restart(self) -> None:
        """The next update is the first of a series: what went before belongs to none."""
        self._last_ns: int | None = None
        self._spent_ns = self._owed_ns = 0
        self._handing_over = {False: 0, True: 0}
        self._end_plain()

    @property
    def awaiting(self) -> bool:
        """Whether the time of something on a device is still to arrive."""
        return self._timer.awaiting

    @property
    def overhead(self) -> float:
        """The share of the time between updates that the monitor took, 0 to 1; 0 before there were two."""
        busy_us = self._busy_us + self._plain_ns / 1000
        elapsed_us = self._elapsed_us + self._plain_elapsed_ns / 1000
        return busy_us / elapsed_us if elapsed_us else 0.0

    def spend(self, started: int) -> None:
        """Count the time since ``started`` as spent on the update at hand."""
        self._spent_ns += self.clock() - started

    def lap(self, now: int) -> float | None:
        """Microseconds since the last update; None at the first."""
        last, self._last_ns = self._last_ns, now
        return None if last is None else (now - last) / 1000

    def plain(self, now: int) -> tuple[float, float]:
        """`lap` and `settle` for an update of the plain gear. The budget hears of it with the next that is not."""
        assert self._last_ns is not None
        elapsed_ns, cost_ns = now - self._last_ns, self._owed_ns + self._spent_ns
        self._last_ns, self._spent_ns = now, 0
        self._plain += 1
        self._plain_ns += cost_ns
        self._plain_elapsed_ns += elapsed_ns
        return elapsed_ns / 1000, cost_ns / 1000

    def _end_plain(self) -> tuple[int, float, float]:
        """How many plain updates there were, how long they took and what they cost, in us. None are left."""
        updates, elapsed_us, cost_us = (
            self._plain,
            self._plain_elapsed_ns / 1000,
            self._plain_ns / 1000,
        )
        self._plain = self._plain_ns = self._plain_elapsed_ns = 0
        self._busy_us += cost_us
        self._elapsed_us += elapsed_us
        return updates, elapsed_us, cost_us

    def settle(
        self, duration: float | None, beside: float, spans: list[TimedSpan], *, sampled: bool
    ) -> float:
        """What was spent since the last update, in us, for its record; the budget takes note of it.

        ``duration`` is `lap`'s; ``beside`` is what was spent on other things than gradients and records, in us. What a
        device took is in it as soon as it is known, an update or more later. What it takes to hand a record over is
        known only then: that of the last one like it stands in for the budget.
        """
        spent_ns, self._spent_ns = self._spent_ns, 0
        usual = (spent_ns + self._handing_over[sampled]) / 1000
        self._update_budget(duration, usual, sampled=sampled, beside=beside)
        cost = (spent_ns + self._owed_ns) / 1000 + beside
        self._owed_ns = 0
        if spans or self._timer.awaiting:
            self._timer.submit(spans, sampled=sampled)
            for us, of_sample in self._timer.finished():
                self.budget.device(us, sampled=of_sample)
                cost += us
        if duration is not None:
            self._busy_us += cost
            self._elapsed_us += duration
        return cost

    def _update_budget(
        self, duration: float | None, usual: float, *, sampled: bool, beside: float
    ) -> None:
        updates, elapsed, cost = self._end_plain()
        if not updates or duration is None:
            self.budget.updated(duration, usual, sampled=sampled, beside=beside)
        elif sampled:
            self.budget.updated(elapsed / updates, cost / updates, sampled=False, updates=updates)
            self.budget.updated(duration, usual, sampled=True, beside=beside)
        else:  # one in many, which looks for news: it weighs as much as any
            updates += 1
            mean, elapsed = (cost + usual) / updates, (elapsed + duration) / updates
            self.budget.updated(elapsed, mean, sampled=False, beside=beside, updates=updates)

    def handed_over(self, started: int, *, sampled: bool) -> None:
        """A record was handed over, since ``started``: it counts as spent before the next update."""
        self._owed_ns = self._handing_over[sampled] = self.clock() - started
