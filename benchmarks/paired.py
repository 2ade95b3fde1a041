"""Comparing times on a machine that is never quiet: many short turns, ratios within a round, and how sure they are.

What disturbs a machine for a second disturbs all that take turns within it, so ratios within a round stay where times
do not. Of those the median is taken, or the ratio of totals, with an interval from a bootstrap. Knows nothing of what
is timed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track


Work: TypeAlias = Callable[[], object]
T = TypeVar("T")

RESAMPLES = 2000


def shown(turns: Sequence[T], title: str) -> Iterable[T]:
    """The turns, one after another; where stderr is a terminal, a bar there says how far they are."""
    console = Console(stderr=True)
    # Drawn between the turns: a thread that did so would disturb what is timed.
    return track(turns, title, console=console, auto_refresh=False, disable=not console.is_terminal)


def seconds(work: Work) -> float:
    """How long the work takes, by the clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def take_turns(
    works: Mapping[str, Work], rounds: int, title: str, turns: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """Seconds that each work took in each round, after a round that is not counted.

    A work with more than one of ``turns`` in a round counts with the median of them. The order is drawn anew each
    round: in a fixed one each would find caches and allocator as the same other left them.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    order = [name for name in works for _ in range((turns or {}).get(name, 1))]
    for number in shown(range(rounds + 1), title):
        random.shuffle(order)
        taken: dict[str, list[float]] = {name: [] for name in works}
        for name in order:
            taken[name].append(seconds(works[name]))
        if number:
            for name, each in taken.items():
                times[name].append(median(each))
    return times


def rounds_within(works: Mapping[str, Work], limit_s: float, least: int = 5) -> int:
    """How many rounds of all the works fit into ``limit_s`` seconds, by one that is timed; at least ``least``."""
    taken = sum(seconds(work) for work in works.values())
    return max(least, int(limit_s / taken))


class Ratio(NamedTuple):
    """A ratio of times, and the interval that holds it in 95 of 100 resamples of the pairs it was made of."""

    value: float
    low: float
    high: float

    def row(self, bar: float | None = None) -> dict[str, Any]:
        """The ratio as cells of a row, with its bar and whether it holds where there is one."""
        return {
            "ratio": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "bar": bar,
            "holds": None if bar is None else self.verdict(bar),
        }

    def verdict(self, bar: float) -> str:
        """Whether the bar holds: "yes" or "no" where the whole interval says so, else "not told apart"."""
        if self.high <= bar:
            return "yes"
        return "no" if self.low > bar else "not told apart"


NO_RATIO: dict[str, Any] = dict.fromkeys(("ratio", "low", "high", "bar", "holds"))


def ratio(ones: Sequence[float], others: Sequence[float]) -> Ratio:
    """How many times the others the ones are, pair by pair. Raises ValueError where they are not as many."""
    ratios = np.array([one / other for one, other in zip(ones, others, strict=True)])
    return _with_interval(np.median(ratios[_draws(len(ratios))], axis=1), float(np.median(ratios)))


def ratio_of_totals(ones: Sequence[float], others: Sequence[float]) -> Ratio:
    """How many times all of the others all of the ones are: what only a few of them pay is in it, and so is more noise.

    Raises ValueError where they are not as many, for it is pairs that are drawn.
    """
    pairs = np.array(list(zip(ones, others, strict=True)))
    totals = pairs[_draws(len(pairs))].sum(axis=1)
    ones_total, others_total = pairs.sum(axis=0)
    return _with_interval(totals[:, 0] / totals[:, 1], ones_total / others_total)


def _draws(count: int) -> npt.NDArray[np.int64]:
    # Drawn alike each time, so that the same times give the same interval.
    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def _with_interval(resampled: npt.NDArray[np.float64], value: float) -> Ratio:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Ratio(float(value), float(low), float(high))
