"""Estimates what fp16 makes of a run's gradients at other scales, from its samples' histograms, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal

import numpy as np

from ampmon.numerics.histogram import BINS, elsewhere
from ampmon_server.analysis.policy.history import History
from ampmon_server.analysis.policy.simulation import Lost, Share
from ampmon_server.analysis.whatif import widened
from ampmon_server.model.series import Floats, Ints


class UnderflowShares:
    """Mean shares of the elements on fp16's grid in the samples of each part of a run.

    ``part`` [s] is the part of each stretch. An element flushed at the sample's scale is a zero, and stays one at any
    other scale, within the error.
    """

    def __init__(self, history: History, part: Ints) -> None:
        on_grid, stretch = history.samples.on_grid, history.stretch_of(history.sample_at)
        seen = (on_grid.elements > 0) & (on_grid.inf + on_grid.nan == 0)
        elements = np.maximum(on_grid.elements, 1)
        self._levels, place = np.unique(np.round(history.level[stretch]), return_inverse=True)
        shape = int(part[-1]) + 1, len(self._levels)
        self._histogram = np.zeros((*shape, BINS))
        self._zeros, self._samples = np.zeros(shape), np.zeros(shape)
        where = part[stretch][seen], place[seen]
        np.add.at(self._histogram, where, (on_grid.histogram / elements[:, None])[seen])
        np.add.at(self._zeros, where, (on_grid.zeros / elements)[seen])
        np.add.at(self._samples, where, 1.0)
        self._at = cache(self._look)

    def mean(self, replays: Iterable[Mapping[tuple[int, float], int]]) -> Lost | None:
        """Return the mean over all updates of replays that spent them in these parts, at these levels of the scale.

        None if no update was sampled.
        """
        total, sums = 0.0, np.zeros((2, 3))
        for spent in replays:
            for (part, level), updates in spent.items():
                shares = self._at(part, round(max(level, -200.0)))
                if shares is not None:
                    total += updates
                    sums += updates * shares
        if not total:
            return None
        zero, subnormal = (sums / total).tolist()
        return Lost(Share(*zero), Share(*subnormal))

    def _look(self, part: int, level: int) -> Floats | None:
        """Both shares of the part's samples, or of all samples if it has none, [2, 3]: low, expected and high."""
        rows = slice(part, part + 1) if self._samples[part].any() else slice(None)
        samples = self._samples[rows].sum(0)
        if not samples.any():
            return None
        zeros = self._zeros[rows].sum(0)
        sums = np.zeros((2, 3))
        for place in np.flatnonzero(samples):
            bits = level - round(float(self._levels[place]))
            n = float(samples[place])
            found = elsewhere(self._histogram[rows, place].sum(0) / n, np.ones(()), bits)
            already = float(zeros[place]) / n
            least, most = already + found.flushed_least, already + found.flushed_most
            zero = _ends("underflow", bits, least, most)
            least, most = found.subnormal_least, found.subnormal_most
            sums += n * np.stack([zero, _ends("subnormal", bits, least, most)])
        return np.asarray(sums / samples.sum(), np.float64)


def _ends(
    share: Literal["underflow", "subnormal"], bits: int, least: Floats, most: Floats
) -> Floats:
    low, high = widened(share, bits, float(least), float(most))
    return np.array([low, (float(least) + float(most)) / 2, high])
