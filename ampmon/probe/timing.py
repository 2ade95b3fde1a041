"""Times work on a device with pairs of events that are queried later, without waiting."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Protocol, TypeAlias

import torch

from ampmon.probe.accelerator import current_stream, is_asynchronous, new_event


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
            pairs = [(device, self._noted(device), self._take(device)) for device in timed]
            return TimedSpan(pairs, self._free)
        except Exception as error:
            self._failed(error)
            return None

    def launch(self, span: TimedSpan | None) -> None:
        """Record the start again, because a device without other work was idle while the host prepared."""
        try:
            for device, begin, _ in span.pairs if span is not None else ():
                begin.record(_stream(device))
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
                end.record(_stream(device))
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

    def _noted(self, device: torch.device) -> DeviceEvent:
        event = self._take(device)
        event.record(_stream(device))
        return event

    def _failed(self, error: Exception) -> None:
        self._report("timing the device", error)
        self._usable = False


def _cost(spans: Sequence[TimedSpan]) -> float | None:
    """The sum of the costs, or None if only torch's own work was timed."""
    costs = [span.cost() for span in spans]
    return sum(costs) if any(span.of is None for span in spans) else None


def _stream(device: torch.device) -> Any:
    return current_stream(device) if is_asynchronous(device) else None
