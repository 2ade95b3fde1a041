"""Compares times on a noisy machine by many short turns, ratios within a round, and confidence intervals.

A disturbance of a second hits all works that take turns within it, so ratios within a round are steadier than times.
The result is their median, or the ratio of totals, with a bootstrap interval. Independent of the timed work.
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
    """Iterate over the turns. If stderr is a terminal, show a progress bar there."""
    console = Console(stderr=True)
    # Refreshed between the turns, because a refreshing thread would disturb the timing.
    return track(turns, title, console=console, auto_refresh=False, disable=not console.is_terminal)


def seconds(work: Work) -> float:
    """Do the work and return the elapsed wall-clock time."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def take_turns(
    works: Mapping[str, Work], rounds: int, title: str, turns: Mapping[str, int] | None = None
) -> dict[str, list[float]]:
    """The seconds of each work in each round, after a warm-up round.

    A work with several ``turns`` in a round counts with their median. Each round has a new random order: in a fixed
    one, each would find caches and allocator as left by the same other one.
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
    """Time one round of all works, and return how many fit into ``limit_s`` seconds, but at least ``least``."""
    taken = sum(seconds(work) for work in works.values())
    return max(least, int(limit_s / taken))


class Ratio(NamedTuple):
    """A ratio of times, and its 95 % interval from resampling the pairs."""

    value: float
    low: float
    high: float

    def row(self, bar: float | None = None) -> dict[str, Any]:
        """The ratio as cells of a row. With a ``bar``, a cell says whether it holds."""
        return {
            "ratio": round(self.value, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "bar": bar,
            "holds": None if bar is None else self.verdict(bar),
        }

    def verdict(self, bar: float) -> str:
        """Whether the bar holds: "yes" or "no" if the whole interval agrees, else "not told apart"."""
        if self.high <= bar:
            return "yes"
        return "no" if self.low > bar else "not told apart"


NO_RATIO: dict[str, Any] = dict.fromkeys(("ratio", "low", "high", "bar", "holds"))


def ratio(ones: Sequence[float], others: Sequence[float]) -> Ratio:
    """The median of ``ones`` / ``others``, pair by pair. Raises ValueError if their lengths differ."""
    ratios = np.array([one / other for one, other in zip(ones, others, strict=True)])
    return _with_interval(np.median(ratios[_draws(len(ratios))], axis=1), float(np.median(ratios)))


def ratio_of_totals(ones: Sequence[float], others: Sequence[float]) -> Ratio:
    """The sum of ``ones`` / the sum of ``others``. It includes rare costs, and therefore more noise.

    Resamples pairs, and raises ValueError if their lengths differ.
    """
    pairs = np.array(list(zip(ones, others, strict=True)))
    totals = pairs[_draws(len(pairs))].sum(axis=1)
    ones_total, others_total = pairs.sum(axis=0)
    return _with_interval(totals[:, 0] / totals[:, 1], ones_total / others_total)


def _draws(count: int) -> npt.NDArray[np.int64]:
    # A fixed seed, so the same times give the same interval.
    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def _with_interval(resampled: npt.NDArray[np.float64], value: float) -> Ratio:
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Ratio(float(value), float(low), float(high))
