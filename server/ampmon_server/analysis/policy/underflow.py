"""Estimates what fp16 makes of a run's gradients at other scales, from its samples' histograms, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ampmon.numerics.histogram import BINS, elsewhere
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.replay import ReplayOutcome
from ampmon_server.analysis.policy.risks import OverflowRisks
from ampmon_server.analysis.whatif import widened
from ampmon_server.model.series import Floats


_ENDS = ("low", "expected", "high")


@dataclass(frozen=True, slots=True)
class Share:
    """A share of all elements of the parameters on fp16's grid, with its bounds."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True)
class Lost:
    """What fp16 does not hold (``zero``), or not in full (``subnormal``)."""

    zero: Share
    subnormal: Share


class UnderflowShares:
    """Mean shares of the elements on fp16's grid in the samples of each part of a run.

    An element flushed at the sample's scale is a zero, and stays one at any other scale, within the error.
    """

    def __init__(self, history: History, ceiling: OverflowRisks) -> None:
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
        self._known: dict[tuple[int, int], Floats | None] = {}

    def mean(self, outcomes: Sequence[ReplayOutcome]) -> Lost | None:
        """Return the mean over all updates of the replays. None if no update was sampled."""
        total, sums = 0.0, np.zeros(2 * len(_ENDS))
        for outcome in outcomes:
            for (part, level), updates in outcome.spent.items():
                shares = self._at(part, level)
                if shares is not None:
                    total += updates
                    sums += updates * shares
        if not total:
            return None
        zero, subnormal = (sums / total).reshape(2, len(_ENDS)).tolist()
        return Lost(Share(*zero), Share(*subnormal))

    def _at(self, part: int, level: float) -> Floats | None:
        key = part, round(max(level, -200.0))
        if key not in self._known:
            self._known[key] = self._look(*key)
        return self._known[key]

    def _look(self, part: int, level: int) -> Floats | None:
        """Both shares (low, expected, high) of the part's samples, or of all samples if it has none."""
        rows = slice(part, part + 1) if self._samples[part].any() else slice(None)
        samples = self._samples[rows].sum(0)
        if not samples.any():
            return None
        zeros = self._zeros[rows].sum(0)
        sums = np.zeros(2 * len(_ENDS))
        for place in np.flatnonzero(samples):
            bits = level - round(float(self._levels[place]))
            n = float(samples[place])
            found = elsewhere(self._histogram[rows, place].sum(0) / n, np.ones(()), bits)
            already = float(zeros[place]) / n
            sums += n * np.concatenate(
                [
                    _ends(
                        "underflow",
                        bits,
                        already + found.flushed_least,
                        already + found.flushed_most,
                    ),
                    _ends("subnormal", bits, found.subnormal_least, found.subnormal_most),
                ]
            )
        return np.asarray(sums / samples.sum(), np.float64)


def _ends(
    share: Literal["underflow", "subnormal"], bits: int, least: Floats, most: Floats
) -> Floats:
    low, high = widened(share, bits, float(least), float(most))
    return np.array([low, (float(least) + float(most)) / 2, high])
