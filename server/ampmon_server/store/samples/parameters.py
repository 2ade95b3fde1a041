"""Lists the parameters of one sampled update: selects a page of them and combines the shards of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampmon import wire
from ampmon.numerics import histogram, sampling_error
from ampmon.numerics.histogram import ON_GRID_SHARE, SMALL_CLASSES, SUBNORMAL_BINS, Statistics
from ampmon.numerics.sampling_error import Floats, Ints, elements_of
from ampmon_server.model.names import matching_indices
from ampmon_server.model.parameter_statistics import STATISTICS
from ampmon_server.model.series import Flags, ParameterSample
from ampmon_server.store.engine.numbers import fields_of, split_named
from ampmon_server.store.samples.samples import Shard


SORTS = ("model", "worst", "lost", *STATISTICS)
"""The sort orders: the order of the model, or the number of inf and NaN or a statistic, worst first.

`worst` is `subnormal`, but parameters off fp16's grid come last: their small elements say nothing about fp16.
"""

_OF_ROWS = frozenset({"subnormal", "zero", "headroom", "norm", "on_grid"})
"""Statistics that have fields of their own in `ParameterRow`."""


@dataclass(frozen=True, slots=True)
class ParameterQuery:
    """Selects the matches of ``search``, or the parameter ``name``; returns ``limit`` of them from ``first`` on."""

    search: str = ""
    name: str | None = None
    sort: str = "model"
    backwards: bool = False
    first: int = 0
    limit: int | None = None

    def cut(self, found: Sequence[int]) -> Sequence[int]:
        return found[self.first : None if self.limit is None else self.first + self.limit]


ALL = ParameterQuery()


@dataclass(frozen=True, slots=True)
class ParameterNumbers:
    """Numbers of n parameters, with shards added up, in the order of the first shard that has each.

    ``parameters`` are as the first shard declares them, and ``numel`` their elements in all shards. The ``statistics``
    represent ``elements`` [n] of these. The ``shares`` of small elements and their ``errors`` are [n, 3], with shards
    as strata.
    """

    parameters: Sequence[wire.Parameter]
    numel: Sequence[int]
    statistics: Statistics
    elements: Ints
    shares: Floats
    errors: Floats
    squares: Floats
    scale: Floats

    def __len__(self) -> int:
        return len(self.parameters)

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> ParameterNumbers:
        place: dict[str, int] = {}
        declared: list[wire.Parameter] = []
        parts, counted = [], []
        for shard in shards:
            one = shard.sample.statistics
            listed = [shard.parameters[index] for index in one.parameters.tolist()]
            rows = [place.setdefault(each.name, len(place)) for each in listed]
            numel = np.array([each.numel for each in listed], np.int64)
            counted.append(elements_of(one.looked, numel, shard.looked_at))
            parts.append(one.renumbered(np.array(rows, np.int64)))
            declared += listed
        every = Statistics.joined(parts)
        together = every if len(parts) == 1 else Statistics.added(parts)
        row, elements = every.parameters.astype(np.int64), np.concatenate(counted)
        total = _summed(elements, row)
        with np.errstate(invalid="ignore", over="ignore"):  # squares may be infinite or NaN
            weighted = every.sum_squares * sampling_error.sampling_weight(every.looked, elements)
            squares = _summed(weighted, row)
        return cls(
            [declared[index] for index in np.unique(row, return_index=True)[1]],
            _summed(np.array([each.numel for each in declared], object), row).tolist(),
            together,
            total,
            *_estimated(every, row, elements, elements / np.maximum(total, 1)[row]),
            squares,
            np.array(shards[0].sample.scale),
        )

    def values(self, statistic: str) -> Floats:
        return STATISTICS[statistic].values(self._column, self.scale)

    def _column(self, name: str) -> npt.NDArray[Any]:
        if name == "subnormal":
            return np.asarray(self.statistics.histogram[:, :SUBNORMAL_BINS].sum(1))
        if name == "sum_squares":
            return self.squares
        return np.asarray(getattr(self if name == "elements" else self.statistics, name))

    @property
    def looked(self) -> Ints:
        return self.statistics.looked

    @property
    def lost(self) -> Ints:
        return self.statistics.inf + self.statistics.nan

    @property
    def overflowed(self) -> Flags:
        """Parameters whose elements looked at are all inf or NaN, so whether they are on the grid is unknown."""
        return np.asarray((self.looked > 0) & (self.lost == self.looked))

    @property
    def on_grid(self) -> Flags:
        return np.asarray(self.statistics.on_grid >= ON_GRID_SHARE * self.looked)

    def matching_indices(self, page: ParameterQuery) -> list[int]:
        """The places of the parameters that a query selects, in its order, before paging."""
        if page.name is not None:
            return [at for at, each in enumerate(self.parameters) if each.name == page.name]
        names = [each.name for each in self.parameters]
        found = np.array(matching_indices(names, page.search), np.int64)
        if page.sort != "model":
            found = found[np.lexsort([key[found] for key in self._keys(page.sort)])]
        places: list[int] = found[::-1].tolist() if page.backwards else found.tolist()
        return places

    def _keys(self, sort: str) -> list[Floats]:
        """Keys for `np.lexsort`, the primary key last. The least value comes first, unknown ones (NaN) last."""
        if sort == "worst":
            return [-self.values("subnormal"), (~self.on_grid).astype(np.float64)]
        if sort == "lost":
            return [-self.lost.astype(np.float64)]
        values = self.values(sort)
        return [values if STATISTICS[sort].least else -values]


def _summed(values: npt.NDArray[Any], row: Ints) -> npt.NDArray[Any]:
    """Add up the values of each row, [rows, ...]."""
    total = np.zeros((row.max(initial=-1) + 1, *values.shape[1:]), values.dtype)
    np.add.at(total, row, values)
    return total


def _estimated(
    every: Statistics, row: Ints, elements: Ints, weight: Floats
) -> tuple[Floats, Floats]:
    """The shares of small elements and their standard errors, given each shard's ``weight`` in its parameter."""
    looked, small = every.looked[:, None], every.classes().small
    numel, weights = elements[:, None], weight[:, None]
    variance = sampling_error.share_variance(small, every.run_squares, looked, numel)
    shares = _summed(small / np.maximum(looked, 1) * weights, row)
    grain = np.zeros((len(shares), 1))
    np.maximum.at(grain[:, 0], row, sampling_error.grain(every.looked, elements) * weight)
    spread = _summed(variance * weights**2, row)
    return shares, sampling_error.standard_error(shares, spread, grain)


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter's scaled gradient. Counts are of the elements looked at; ``norm`` is unscaled.

    Fractions are of all elements, each with its standard error, 0 if all were looked at. If ``sampled``, fractions and
    the norm are estimates, amax is a lower bound and headroom an upper bound. A non-finite amax or norm is null, and
    its kind is in the field beside it. Fractions and headroom are null if nothing was looked at. ``shape`` is that of
    the local shard if gradients are sharded. ``statistics`` has those without a field here, by name, and
    ``statistics_kinds`` the kinds of those that are infinite.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numel: int
    looked: int
    sampled: bool
    zeros: int
    below_grid: int
    subnormal: int
    normal: int
    inf: int
    nan: int
    zero_fraction: float | None
    zero_fraction_error: float | None
    below_grid_fraction: float | None
    below_grid_fraction_error: float | None
    subnormal_fraction: float | None
    subnormal_fraction_error: float | None
    on_grid: bool
    on_grid_fraction: float | None
    amax: float | None
    amax_kind: str | None
    headroom_bits: float | None
    headroom_bits_kind: str | None
    norm: float | None
    norm_kind: str | None
    statistics: dict[str, float | None]
    statistics_kinds: dict[str, str | None]
    histogram: list[int]


@dataclass(frozen=True, slots=True)
class SampledUpdate:
    """The requested sampled update, its ``scale``, and the ranks whose shards are in it.

    ``parameters`` is the requested page of parameters. ``total`` counts all of them, ``found`` the matches of the
    search, ``on_grid`` those on fp16's grid, and ``overflowed`` those with only inf or NaN elements. ``sampled`` says
    whether only some elements of any parameter were looked at.
    """

    step: int
    time: int
    scale: float | None
    scale_kind: str | None
    ranks: list[int]
    total: int
    found: int
    on_grid: int
    overflowed: int
    sampled: bool
    parameters: list[ParameterRow]


def rows_of(shards: Sequence[Shard], page: ParameterQuery = ALL) -> SampledUpdate:
    """Return a page of the parameters, with shards combined."""
    every = ParameterNumbers.of(shards)
    found = every.matching_indices(page)
    first = shards[0].sample
    scale, kind = split_named(first.scale)
    norms = histogram.gradient_norm(every.squares, every.scale)
    more = {
        name: each.reported(every.values(name))
        for name, each in STATISTICS.items()
        if name not in _OF_ROWS
    }
    return SampledUpdate(
        first.step,
        first.time,
        scale,
        kind,
        [shard.rank for shard in shards],
        len(every),
        len(found),
        int((every.on_grid & ~every.overflowed).sum()),
        int(every.overflowed.sum()),
        bool((every.looked < every.elements).any()),
        [
            _row(
                every,
                place,
                float(norms[place]),
                {name: float(values[place]) for name, values in more.items()},
            )
            for place in page.cut(found)
        ],
    )


def sample_of(shards: Sequence[Shard], name: str) -> ParameterSample | None:
    """One parameter of a sampled update, with shards added up; None if no shard has it."""
    every = ParameterNumbers.of(shards)
    for place in every.matching_indices(ParameterQuery(name=name)):
        first, elements = shards[0].sample, int(every.elements[place])
        one = every.statistics.select(np.array([place]))
        return ParameterSample(first.step, first.scale, elements, one)
    return None


def _row(
    every: ParameterNumbers, place: int, norm: float, more: Mapping[str, float]
) -> ParameterRow:
    """``more`` are the statistics without a field of their own."""
    parameter, one = every.parameters[place], every.statistics.select(np.array([place]))
    looked, elements = int(one.looked[0]), int(every.elements[place])
    estimates: dict[str, Any] = {
        f"{name}_fraction{word}": value if elements else None
        for word, values in (("", every.shares), ("_error", every.errors))
        for name, value in zip(SMALL_CLASSES, values[place].tolist(), strict=True)
    }
    bits = histogram.headroom_bits(one.amax)[0] if looked else None
    return ParameterRow(
        name=parameter.name,
        shape=parameter.shape,
        dtype=parameter.dtype,
        numel=every.numel[place],
        sampled=elements > looked,
        **counts_of(one),
        **estimates,
        on_grid=int(one.on_grid[0]) >= ON_GRID_SHARE * looked,
        on_grid_fraction=int(one.on_grid[0]) / looked if looked else None,
        **fields_of("amax", one.amax[0]),
        **fields_of("headroom_bits", bits),
        **fields_of("norm", norm),
        statistics={name: split_named(value)[0] for name, value in more.items()},
        statistics_kinds={
            name: split_named(value)[1] for name, value in more.items() if np.isinf(value)
        },
    )


def counts_of(one: Statistics) -> dict[str, Any]:
    """The counts of one parameter or module, [1], by the names of their fields in a row."""
    classes = one.classes()
    arrays = {name: getattr(one, name) for name in ("looked", "zeros", "inf", "nan")}
    arrays |= {name: getattr(classes, name) for name in ("below_grid", "subnormal", "normal")}
    counts = {name: int(array[0]) for name, array in arrays.items()}
    return counts | {"histogram": one.histogram[0].tolist()}
