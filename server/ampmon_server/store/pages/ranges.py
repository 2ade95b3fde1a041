"""Sets of integers as sorted, disjoint ranges with both ends included, as the ledger stores them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np


Range: TypeAlias = tuple[int, int]


def from_numbers(numbers: Sequence[int]) -> list[Range]:
    """The ranges that hold ``numbers``, given in any order."""
    if numbers and numbers[-1] - numbers[0] + 1 == len(numbers):
        first, last = numbers[0], numbers[-1]
        if list(numbers) == list(range(first, last + 1)):  # nearly always, and numpy takes longer
            return [(first, last)]
    held = np.unique(np.array(numbers, np.int64))
    apart = np.diff(held) > 1
    firsts = held[np.append(True, apart)[: len(held)]]
    lasts = held[np.append(apart, True)[: len(held)]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Merge ranges, in any order, overlapping or touching, into the fewest that hold the same numbers."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def without(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """Subtract ``others`` from ``ranges``; both must be sorted and disjoint."""
    left = []
    for first, last in ranges:
        start = first
        for low, high in others:
            if low <= last and start <= high:
                left.append((start, low - 1))
                start = high + 1
        left.append((start, last))
    return [(low, high) for low, high in left if low <= high]


def size(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def missing(ranges: Sequence[Range]) -> int:
    """Count the numbers from 0 to the largest that no range holds. ``ranges`` must be disjoint."""
    return max((last for _, last in ranges), default=-1) + 1 - size(ranges)


def absent(numbers: Sequence[int], ranges: Sequence[Range]) -> list[int]:
    """The indices of the sorted ``numbers`` that no range holds; ``ranges`` must be sorted."""
    if not ranges or (numbers and numbers[0] > ranges[-1][1]):  # nearly always the case
        return list(range(len(numbers)))
    indices = []
    position = 0
    for index, number in enumerate(numbers):
        while position < len(ranges) and ranges[position][1] < number:
            position += 1
        if position == len(ranges) or number < ranges[position][0]:
            indices.append(index)
    return indices


def gaps(numbers: Sequence[int], first: int, last: int) -> list[Range]:
    """The ranges from ``first`` to ``last`` that hold none of the sorted ``numbers``."""
    return without([(first, last)], from_numbers(numbers))
