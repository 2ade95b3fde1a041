"""A scripted device, whose progress the test decides, and its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Device:
    """A device at time ``now`` in ms; work enqueued up to time ``done`` is complete."""

    now: float = 0.0
    done: float = float("inf")
    tick: float = 0.0
    """Milliseconds by which each event advances `now`."""
    made: list[Event] = field(default_factory=list)

    def event(self, of: Any = None) -> Event:
        self.made.append(Event(self))
        return self.made[-1]


@dataclass(eq=False)
class Event:
    """The part of torch.Event in use. It cannot be waited for, and `elapsed_time` fails for unfinished work."""

    device: Device
    at: float | None = None

    def record(self, stream: Any = None, /) -> None:
        self.at = self.device.now
        self.device.now += self.device.tick

    def query(self) -> bool:
        return self.at is not None and self.at <= self.device.done

    def elapsed_time(self, end: Event, /) -> float:
        assert self.query()
        assert end.query()
        return end.at - self.at
