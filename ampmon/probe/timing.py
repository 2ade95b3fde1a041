"""Accounts for the time that the monitor takes: by a clock on the host, by pairs of events on devices. Never waits."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Protocol, TypeAlias

import torch

from ampmon.probe.accelerator import current_stream, is_asynchronous, new_event
from ampmon.probe.budget import Budget


_AWAITED_MAX = 64
"""The most updates with pending events. No more are timed while a device is stuck."""


class DeviceEvent(Protocol):
    """The methods of torch.Event(enable_timing=True) that are used here."""

    def record(self, stream: Any = None, /) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any, /) -> float: ...


_Free: TypeAlias = defaultdict[torch.device, list[DeviceEvent]]
_free: _Free = defaultdict(list)
"""Events for reuse by any scaler. None is ever destroyed: the garbage collector of a forked child may find a scaler
that its parent dropped, and destroying an event there calls the parent's device."""


class Baseline:
    """The device time of torch's own unscaling of an optimizer's gradients, and how often timing it was begun."""

    __slots__ = ("_newest", "begun")

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=3)
        self.begun = 0

    def add(self, us: float) -> None:
        self._newest.append(us)

    def us(self) -> float:
        """The typical time in us. Zero while nothing is known, so that a pass in its place counts in full."""
        return median_low(self._newest) if self._newest else 0.0


@dataclass(slots=True)
class TimedSpan:
    """A piece of timed work: one pair of events for each device.

    Work that replaces torch's unscaling costs its time above the baseline ``over``. Torch's own unscaling adds its
    time to the baseline ``of``.
    """

    pairs: list[tuple[torch.device, DeviceEvent, DeviceEvent]]
    free: _Free
    over: Baseline | None = None
    of: Baseline | None = None

    def __del__(self) -> None:
        for device, begin, end in self.pairs:
            self.free[device] += (begin, end)

    def done(self) -> bool:
        return all(begin.query() and end.query() for _, begin, end in self.pairs)

    def us(self) -> float:
        return sum(begin.elapsed_time(end) for _, begin, end in self.pairs) * 1000

    def cost(self) -> float:
        """Return the device time that training without a monitor would not take, in us. Feeds the baseline ``of``."""
        if self.of is not None:
            self.of.add(self.us())
            return 0.0
        return max(self.us() - (self.over.us() if self.over is not None else 0.0), 0.0)


def joined(spans: Sequence[TimedSpan], over: Baseline | None) -> TimedSpan:
    """Join spans that together replace torch's unscaling into one, which takes over their events."""
    whole = TimedSpan([pair for span in spans for pair in span.pairs], spans[0].free, over)
    for span in spans:
        span.pairs = []
    return whole


def _timed_event(device: torch.device) -> DeviceEvent:
    event: DeviceEvent = new_event(device, timed=True)
    return event


class DeviceTimer:
    """Hands out pairs of events, and takes them back once both have occurred. Never waits and never raises.

    For accelerators only: on a CPU, callers read a clock. Do not use it while a CUDA graph is captured. The first error
    is reported, and nothing is timed from then on.
    """

    def __init__(
        self,
        report: Callable[[str, Exception], None],
        event: Callable[[torch.device], DeviceEvent] = _timed_event,
        timed: Callable[[torch.device], bool] = is_asynchronous,
    ) -> None:
        self._report = report
        self._event = event
        self._timed = timed
        self._usable = True
        self._free = _free if event is _timed_event else defaultdict(list)
        self._awaited: deque[tuple[list[TimedSpan], bool]] = deque()

    @property
    def awaiting(self) -> bool:
        """Whether `finished` has anything to return, now or later."""
        return bool(self._awaited)

    def begin(self, devices: Collection[torch.device]) -> TimedSpan | None:
        """Record the start of work on these devices. Returns None if nothing is timed."""
        timed = [device for device in devices if self._timed(device)]
        if not timed or not self._usable or len(self._awaited) >= _AWAITED_MAX:
            return None
        try:
            pairs = [(device, self._take(device), self._take(device)) for device in timed]
        except Exception as error:
            self._failed(error)
            return None
        span = TimedSpan(pairs, self._free)
        self.launch(span)
        return span if self._usable else None

    def launch(self, span: TimedSpan | None) -> None:
        """Record the start. Do so again after preparing work: a device without other work was idle meanwhile."""
        try:
            for device, begin, _ in span.pairs if span is not None else ():
                begin.record(current_stream(device))
        except Exception as error:
            self._failed(error)

    def end(
        self,
        span: TimedSpan | None,
        spans: list[TimedSpan],
        *,
        over: Baseline | None = None,
        of: Baseline | None = None,
    ) -> None:
        """Record the end of the work, and add it to the ``spans`` of the same update."""
        if span is None:
            return
        try:
            for device, _, end in span.pairs:
                end.record(current_stream(device))
        except Exception as error:
            self._failed(error)
            return
        span.over, span.of = over, of
        if of is not None:
            of.begun += 1
        spans.append(span)

    def submit(self, spans: list[TimedSpan], *, sampled: bool) -> None:
        """Queue the spans of an update that has ended."""
        if spans:
            self._awaited.append((spans, sampled))

    def finished(self) -> list[tuple[float, bool]]:
        """Return the device cost in us, and whether it was sampled, of each update known by now, in order."""
        known = []
        try:
            while self._awaited and all(span.done() for span in self._awaited[0][0]):
                spans, sampled = self._awaited.popleft()
                cost = _cost(spans)
                if cost is not None:
                    known.append((cost, sampled))
        except Exception as error:
            self._awaited.clear()
            self._failed(error)
        return known

    def _take(self, device: torch.device) -> DeviceEvent:
        try:
            return self._free[device].pop()
        except IndexError:  # other threads may have taken the last
            return self._event(device)

    def _failed(self, error: Exception) -> None:
        self._report("timing the device", error)
        self._usable = False


def _cost(spans: Sequence[TimedSpan]) -> float | None:
    """The sum of the costs, or None if only torch's own work was timed."""
    costs = [span.cost() for span in spans]
    return sum(costs) if any(span.of is None for span in spans) else None


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
