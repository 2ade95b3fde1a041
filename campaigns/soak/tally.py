"""The kills, faults and counts of a round, which add up over rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Count:
    """What became of the records that trainers reported. ``problems`` describes anything else that is wrong."""

    reported: int = 0
    lost: int = 0
    lost_from_memory: int = 0
    """Lost records that passed through memory while the disk was slow. A kill may lose the last of them."""
    doubled: int = 0
    """Stored but never reported."""
    in_flight: int = 0
    """Stored but not reported, because the trainer was killed first."""
    problems: list[str] = field(default_factory=list)

    def wrong(self) -> bool:
        return bool(self.lost or self.doubled or self.problems)


@dataclass(slots=True)
class Tally:
    """Kills of each role, the faults of requests, and the counts at the end."""

    trainer: int = 0
    sender: int = 0
    sender_before: int = 0
    """Kills of senders that were not elected yet."""
    server: int = 0
    lost_acks: int = 0
    repeated: int = 0
    cut: int = 0
    """Requests that were cut off, reset, or found no server."""
    trainings: int = 0
    runs: int = 0
    rounds: int = 0
    rest_seconds: float = 0.0
    """How long everything took to arrive after the last kill."""
    count: Count = field(default_factory=Count)

    def fewest(self) -> int:
        """The smallest of the four numbers that must reach the target."""
        return min(self.trainer, self.sender, self.server, self.lost_acks)


def summed(tallies: Iterable[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        _add(total, tally)
    return total


def _add(total: object, more: object) -> None:
    for each in fields(total):  # type: ignore[arg-type]
        value = getattr(total, each.name)
        if isinstance(value, Count):
            _add(value, getattr(more, each.name))
        else:
            setattr(total, each.name, value + getattr(more, each.name))
