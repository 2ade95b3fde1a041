"""A device that gets on with its work when the test says so, and events that it passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Device:
    """Work is enqueued on it at ``now`` ms; it has done what was enqueued until ``done``."""

    now: float = 0.0
    done: float = float("inf")
    tick: float = 0.0
    """By how many ms `now` goes on with each event."""
    made: list[Event] = field(default_factory=list)

    def event(self, of: Any = None) -> Event:
        self.made.append(Event(self))
        return self.made[-1]


@dataclass(eq=False)
class Event:
    """What is used of torch.Event. To wait for it is an error, as is to ask how long what is not done took."""

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
