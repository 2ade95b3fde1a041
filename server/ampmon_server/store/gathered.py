"""All parameters of one sampled update, side by side: which of them a page is to show, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ampmon.estimates import elements_of
from ampmon.histogram import ON_GRID_SHARE
from ampmon_server.names import sought
from ampmon_server.series import Flags, Floats, Ints
from ampmon_server.store.samples import Shard


Sort: TypeAlias = Literal[
    "model", "worst", "subnormal", "zero", "lost", "headroom", "norm", "on_grid"
]
"""By what parameters are sorted: the order of the model, or a statistic, the worst first.

`worst` is `subnormal`, with those last that are off fp16's grid: their small elements say nothing about fp16.
"""


@dataclass(frozen=True, slots=True)
class Page:
    """Which parameters are wanted: those that a ``search`` finds, or the one of a ``name``; some from ``first`` on."""

    search: str = ""
    name: str | None = None
    sort: Sort = "model"
    backwards: bool = False
    first: int = 0
    limit: int | None = None

    def cut(self, found: Sequence[int]) -> Sequence[int]:
        return found[self.first : None if self.limit is None else self.first + self.limit]


ALL = Page()


@dataclass(frozen=True, slots=True)
class Gathered:
    """n parameters in the order of the first shard that has each: numbers [n], shards added up.

    ``rows`` are, for each shard, where each parameter stands in it.
    """

    names: tuple[str, ...]
    rows: Sequence[Mapping[int, int]]
    elements: Ints
    looked: Ints
    zeros: Ints
    subnormal: Ints
    grid: Ints
    lost: Ints
    amax: Floats
    sum_squares: Floats

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Gathered:
        place: dict[str, int] = {}
        at, counts, magnitudes = [], [], []
        for shard in shards:
            one = shard.sample.statistics
            told = [shard.parameters[index] for index in one.parameters.tolist()]
            at.append(
                np.array([place.setdefault(each.name, len(place)) for each in told], np.int64)
            )
            numel = np.array([each.numel for each in told], np.int64)
            of, classes = elements_of(one.looked, numel, shard.looked_at), one.classes()
            below = classes.subnormal + classes.below_grid
            counts.append(
                np.stack([of, one.looked, one.zeros, below, one.on_grid, one.inf + one.nan])
            )
            with np.errstate(invalid="ignore", over="ignore"):
                magnitudes.append((one.amax, one.sum_squares * (of / np.maximum(one.looked, 1))))
        added = np.zeros((6, len(place)), np.int64)
        amax, squares = np.zeros(len(place)), np.zeros(len(place))
        with np.errstate(invalid="ignore", over="ignore"):
            for where, numbers, (largest, part) in zip(at, counts, magnitudes, strict=True):
                added[:, where] += numbers
                amax[where] = np.maximum(amax[where], largest)
                squares[where] += part
        rows = [{int(each): row for row, each in enumerate(where)} for where in at]
        elements, looked, zeros, small, grid, lost = added
        return cls(tuple(place), rows, elements, looked, zeros, small, grid, lost, amax, squares)

    @property
    def overflowed(self) -> Flags:
        """Of which every element that was looked at is inf or NaN: nothing is known of their grid."""
        return np.asarray((self.looked > 0) & (self.lost == self.looked))

    @property
    def on_grid(self) -> Flags:
        return np.asarray(self.grid >= ON_GRID_SHARE * self.looked)

    def sought(self, page: Page) -> list[int]:
        """The places of the parameters that are wanted, in their order."""
        if page.name is not None:
            return [place for place, name in enumerate(self.names) if name == page.name]
        found = np.array(sought(self.names, page.search), np.int64)
        if page.sort != "model":
            found = found[np.lexsort([key[found] for key in self._keys(page.sort)])]
        places: list[int] = found[::-1].tolist() if page.backwards else found.tolist()
        return places

    def _keys(self, sort: Sort) -> list[Floats]:
        """What is sorted by, the last key first; the least comes first, and what is not known last."""
        looked = np.where(self.looked > 0, self.looked, np.nan)
        small = -self.subnormal / looked
        if sort == "worst":
            return [small, (~self.on_grid).astype(np.float64)]
        keys: Mapping[Sort, Floats] = {
            "subnormal": small,
            "zero": -self.zeros / looked,
            "lost": -self.lost.astype(np.float64),
            "headroom": -np.where(np.isnan(self.amax), np.inf, self.amax),
            "norm": -np.where(np.isnan(self.sum_squares), np.inf, self.sum_squares),
            "on_grid": self.grid / looked,
        }
        return [keys[sort]]
