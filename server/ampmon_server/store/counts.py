"""How many updates, skips and samples a scaler has, ranks and attempts that overlay one another counted once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias


class Mark(NamedTuple):
    """What one stored update adds to the counts."""

    stream: int
    step: int
    attempt: int
    skipped: int
    sampled: int


class Counts(NamedTuple):
    """Distinct steps: all of them, those skipped, those sampled."""

    updates: int = 0
    skipped: int = 0
    sampled: int = 0

    def minus(self, other: Counts) -> Counts:
        return Counts(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))


Key: TypeAlias = tuple[int, int]


def count(marks: Iterable[Mark]) -> Counts:
    """Count the steps of one scaler.

    At each (stream, step) only the newest attempt's mark counts; a step is skipped, or sampled, where it is so in any
    stream.
    """
    newest: dict[Key, Mark] = {}
    for mark in marks:
        held = newest.get((mark.stream, mark.step))
        if held is None or mark.attempt > held.attempt:
            newest[mark.stream, mark.step] = mark
    skipped = {mark.step for mark in newest.values() if mark.skipped}
    sampled = {mark.step for mark in newest.values() if mark.sampled}
    return Counts(len({mark.step for mark in newest.values()}), len(skipped), len(sampled))


def change(before: Sequence[Mark], added: Sequence[Mark]) -> Counts:
    """What ``added`` changes where ``before`` are the marks that were stored at the same steps.

    A mark whose (stream, step, attempt) is stored already adds nothing.
    """
    stored = {mark[:3] for mark in before}
    new = [mark for mark in added if mark[:3] not in stored]
    return count([*before, *new]).minus(count(before))
