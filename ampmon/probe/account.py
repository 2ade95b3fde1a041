"""Accounts for the time that the monitor takes from training: by a clock on the host, by events on devices."""

from __future__ import annotations

import time
from collections.abc import Callable

from ampmon.probe.budget import Budget
from ampmon.probe.timing import DeviceTimer, TimedSpan


class Account:
    """The monitor's known cost, update by update. Points in time are readings of ``clock``, in nanoseconds."""

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
        """Updates of the plain gear since the last update of the full gear: their number, cost and duration."""
        self.restart()

    def restart(self) -> None:
        """Start a new series: the next update is its first. Discards time that belongs to no update."""
        self._last_ns: int | None = None
        self._spent_ns = self._owed_ns = 0
        self._handing_over = {False: 0, True: 0}
        self._end_plain()

    @property
    def awaiting(self) -> bool:
        """Whether any time measured on a device is still pending."""
        return self._timer.awaiting

    @property
    def overhead(self) -> float:
        """The share of the time between updates that the monitor took, 0 to 1; 0 before the second update."""
        busy_us = self._busy_us + self._plain_ns / 1000
        elapsed_us = self._elapsed_us + self._plain_elapsed_ns / 1000
        return busy_us / elapsed_us if elapsed_us else 0.0

    def spend(self, started: int) -> None:
        """Charge the time since ``started`` to the current update."""
        self._spent_ns += self.clock() - started

    def lap(self, now: int) -> float | None:
        """Return the microseconds between the last update and ``now``, or None at the first update."""
        last, self._last_ns = self._last_ns, now
        return None if last is None else (now - last) / 1000

    def plain(self, now: int) -> tuple[float, float]:
        """Do `lap` and `settle` for an update of the plain gear; return its duration and cost in us.

        The next update of the full gear passes them on to the budget.
        """
        assert self._last_ns is not None
        elapsed_ns, cost_ns = now - self._last_ns, self._owed_ns + self._spent_ns
        self._last_ns, self._spent_ns = now, 0
        self._plain += 1
        self._plain_ns += cost_ns
        self._plain_elapsed_ns += elapsed_ns
        return elapsed_ns / 1000, cost_ns / 1000

    def _end_plain(self) -> tuple[int, float, float]:
        """Return the plain updates' number, duration and cost (us), add them to the totals, and reset them."""
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
        """Return the cost since the last update in us, for the update's record, and inform the budget.

        ``duration`` comes from `lap`. ``beside`` is the time spent on anything but gradients and records, in us. The
        cost includes device time once it is known, one or more updates later. The time to hand over this record is
        not known yet. For the budget, that of the last record of the same kind (sampled or not) replaces it.
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
        else:  # a full update after many plain ones: it counts as one of them
            updates += 1
            mean, elapsed = (cost + usual) / updates, (elapsed + duration) / updates
            self.budget.updated(elapsed, mean, sampled=False, beside=beside, updates=updates)

    def handed_over(self, started: int, *, sampled: bool) -> None:
        """Charge the time since ``started``, which handing over a record took, to the next update."""
        self._owed_ns = self._handing_over[sampled] = self.clock() - started
