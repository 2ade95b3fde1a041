"""Recombines recorded samples of gradients and shifts them to other scales. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampmon import wire
from ampmon.numerics.histogram import Statistics


SCALE = 2.0**16
"""The loss scale of all recorded samples."""


class Real:
    """``samples`` of every parameter, in the order of ``parameters``, at a `SCALE` of 2^16."""

    def __init__(self, parameters: Sequence[wire.Parameter], samples: Sequence[Statistics]) -> None:
        self.parameters = tuple(parameters)
        self.samples = tuple(samples)
        self._stacked = {
            name: np.stack([getattr(sample, name) for sample in samples])
            for name in Statistics.__dataclass_fields__
        }

    def varied(self, chance: np.random.Generator) -> Statistics:
        """A new plausible sample, with each parameter's values from a random one of the real samples."""
        count = len(self.parameters)
        picked = chance.integers(len(self.samples), size=count), np.arange(count)
        return Statistics(**{name: stacked[picked] for name, stacked in self._stacked.items()})


def shifted(statistics: Statistics, binades: int) -> Statistics:
    """The same gradients at 2^binades times the scale. Elements beyond the histogram count in its outermost bin."""
    histogram = np.roll(statistics.histogram, binades, axis=1)
    if binades > 0:
        histogram[:, -1] += histogram[:, :binades].sum(1)
        histogram[:, :binades] = 0
    elif binades < 0:
        histogram[:, 0] += histogram[:, binades:].sum(1)
        histogram[:, binades:] = 0
    return replace(
        statistics,
        histogram=histogram,
        amax=statistics.amax * 2.0**binades,
        sum_squares=statistics.sum_squares * 4.0**binades,
    )
