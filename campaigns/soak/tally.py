"""What happened and what was counted: numbers that add up over rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Count:
    """Records told, and what became of them. ``problems`` says in words what else is not as it must be."""

    told: int = 0
    lost: int = 0
    lost_from_memory: int = 0
    """Of those that went through memory while the disk was slow, which may lose the last ones."""
    doubled: int = 0
    """Stored, and never told."""
    in_flight: int = 0
    """Stored, and not told only because their trainer was killed before it could."""
    problems: list[str] = field(default_factory=list)

    def wrong(self) -> bool:
        return bool(self.lost or self.doubled or self.problems)


@dataclass(slots=True)
class Tally:
    """Kills of each role, what befell requests, and what was counted at the end."""

    trainer: int = 0
    sender: int = 0
    sender_before: int = 0
    """Kills of senders before they were elected, counted apart."""
    server: int = 0
    lost_acks: int = 0
    repeated: int = 0
    cut: int = 0
    """Requests that were cut off, reset, or found no server."""
    trainings: int = 0
    runs: int = 0
    rounds: int = 0
    rest_seconds: float = 0.0
    """How long everything took to arrive once nothing was killed any more."""
    count: Count = field(default_factory=Count)

    def fewest(self) -> int:
        """Of the four that there must be enough of, the one that there are the fewest of."""
        return min(self.trainer, self.sender, self.server, self.lost_acks)


def summed(tallies: Iterable[Tally]) -> Tally:
    """The sum, as a tally of its own."""
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
