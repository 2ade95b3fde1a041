"""What fp16 makes of a run's gradients at other scales, from the histograms of its samples, part by part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampmon.histogram import BINS, elsewhere
from ampmon_server.policy.ceiling import Ceiling
from ampmon_server.policy.history import History
from ampmon_server.policy.replay import Outcome


class Underflow:
    """Mean shares of the elements on fp16's grid in the samples of each part of a run.

    What was flushed at the scale of the sample is a zero, and stays one at any other.
    """

    def __init__(self, history: History, ceiling: Ceiling) -> None:
        on_grid, at = history.samples.on_grid, history.sample_at
        stretch = np.minimum(np.searchsorted(history.ends, at, side="right"), len(ceiling.part) - 1)
        level = history.level[stretch]
        part = ceiling.part[stretch]
        seen = (on_grid.elements > 0) & (on_grid.inf + on_grid.nan == 0)
        elements = np.maximum(on_grid.elements, 1)
        self._levels, place = np.unique(np.round(level), return_inverse=True)
        shape = ceiling.parts, len(self._levels)
        self._histogram = np.zeros((*shape, BINS))
        self._zeros, self._samples = np.zeros(shape), np.zeros(shape)
        where = part[seen], place[seen]
        np.add.at(self._histogram, where, (on_grid.histogram / elements[:, None])[seen])
        np.add.at(self._zeros, where, (on_grid.zeros / elements)[seen])
        np.add.at(self._samples, where, 1.0)
        self._known: dict[tuple[int, float], tuple[float, float] | None] = {}

    def mean(self, outcomes: Sequence[Outcome]) -> tuple[float | None, float | None]:
        """The share of zeros and of subnormal elements over all updates of replays; None where none was sampled."""
        total, sums = 0.0, np.zeros(2)
        for outcome in outcomes:
            for (part, level), updates in outcome.spent.items():
                shares = self._at(part, level)
                if shares is not None:
                    total += updates
                    sums += updates * np.array(shares)
        return (None, None) if not total else (float(sums[0] / total), float(sums[1] / total))

    def _at(self, part: int, level: float) -> tuple[float, float] | None:
        key = part, round(max(level, -200.0))
        if key not in self._known:
            self._known[key] = self._look(*key)
        return self._known[key]

    def _look(self, part: int, level: int) -> tuple[float, float] | None:
        """Of the samples of a part, or where it has none, of all."""
        rows = slice(part, part + 1) if self._samples[part].any() else slice(None)
        samples = self._samples[rows].sum()
        if not samples:
            return None
        zero, subnormal = self._zeros[rows].sum(), 0.0
        for place, recorded in enumerate(self._levels.tolist()):
            found = elsewhere(
                self._histogram[rows, place].sum(0), np.ones(()), level - round(recorded)
            )
            zero += float(found.flushed_least + found.flushed_most) / 2
            subnormal += float(found.subnormal_least + found.subnormal_most) / 2
        return float(zero / samples), float(subnormal / samples)
