"""Times work on a device by pairs of events, asked for later, without waiting. Knows not what the work is for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Protocol, TypeAlias

import torch

from ampmon.probe.accelerator import current_stream, is_asynchronous, new_event


_AWAITED_MAX = 64
"""Updates whose events may be under way at once: behind a device that is stuck, no more are begun."""


class DeviceEvent(Protocol):
    """What is used of torch.Event(enable_timing=True)."""

    def record(self, stream: Any = None, /) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any, /) -> float: ...


_Free: TypeAlias = defaultdict[torch.device, list[DeviceEvent]]
_free: _Free = defaultdict(list)
"""Events to be used again, whichever scaler they were made for. None is ever destroyed: the garbage collector of a
forked child may come upon a scaler that its parent dropped, and to destroy an event there calls the parent's device."""


class Baseline:
    """What torch's own unscaling of an optimizer's gradients takes on the device, and how often it was timed."""

    __slots__ = ("_newest", "begun")

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=3)
        self.begun = 0

    def add(self, us: float) -> None:
        self._newest.append(us)

    def us(self) -> float:
        """Microseconds; zero while nothing is known, so that a pass in its place counts in full."""
        return median_low(self._newest) if self._newest else 0.0


@dataclass(slots=True)
class TimedSpan:
    """A piece of work: pairs of events, one for each device.

    Work done in the place of torch's unscaling is counted ``over`` that; torch's own is what a baseline is made ``of``.
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
        """What this took of the device's time that training without a monitor would not, in us."""
        if self.of is not None:
            self.of.add(self.us())
            return 0.0
        return max(self.us() - (self.over.us() if self.over is not None else 0.0), 0.0)


def joined(spans: Sequence[TimedSpan], over: Baseline | None) -> TimedSpan:
    """Pieces of work that stand together in the place of torch's unscaling, as one, which takes their events."""
    whole = TimedSpan([pair for span in spans for pair in span.pairs], spans[0].free, over)
    for span in spans:
        span.pairs = []
    return whole


def _timed_event(device: torch.device) -> DeviceEvent:
    event: DeviceEvent = new_event(device, timed=True)
    return event


class DeviceTimer:
    """Hands out pairs of events, and takes them back when both have come to pass. Never waits, and never raises.

    For accelerators; on a CPU whoever does the work reads a clock. Not to be used while a CUDA graph is captured.
    What goes wrong is reported once, and nothing is timed from then on.
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
        """Whether there is anything for `finished` to return, now or later."""
        return bool(self._awaited)

    def begin(self, devices: Collection[torch.device]) -> TimedSpan | None:
        """Have the start of work on these devices noted; None where nothing is timed."""
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
        """Have the start noted again: a device without other work did nothing while the host got ready."""
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
        """Have the end of the work noted, and add it to ``spans``, those of the same update."""
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
        """The update is over in which these were timed."""
        if spans:
            self._awaited.append((spans, sampled))

    def finished(self) -> list[tuple[float, bool]]:
        """The cost on the device, in us, of each update that is known by now, and whether it was sampled, in order."""
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
    """The sum of what is a cost; None where torch's own work is all that was timed."""
    costs = [span.cost() for span in spans]
    return sum(costs) if any(span.of is None for span in spans) else None


def _stream(device: torch.device) -> Any:
    return current_stream(device) if is_asynchronous(device) else None
