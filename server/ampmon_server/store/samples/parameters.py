"""Lists the parameters of one sampled update: selects a page of them and combines the shards of each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ampmon import wire
from ampmon.numerics import histogram, sampling_error
from ampmon.numerics.histogram import ON_GRID_SHARE, SMALL_CLASSES, Statistics
from ampmon.numerics.sampling_error import Floats, Ints, elements_of
from ampmon_server.model.names import matching_indices
from ampmon_server.model.parameter_statistics import STATISTICS
from ampmon_server.model.series import Flags, ParameterSample
from ampmon_server.store.engine.numbers import split_named
from ampmon_server.store.samples.samples import Shard


SORTS = ("model", "worst", "lost", *STATISTICS)
"""The sort orders: the order of the model, or the number of inf and NaN or a statistic, worst first.

`worst` is `subnormal`, but parameters off fp16's grid come last: their small elements say nothing about fp16.
"""

_OF_ROWS = frozenset({"subnormal", "zero", "headroom", "norm", "on_grid"})
"""Statistics that have fields of their own in `ParameterRow`."""

_FRACTIONS = tuple(f"{name}_fraction" for name in SMALL_CLASSES)


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
    """Numbers of n parameters, [n] each, with shards added up, in the order of the first shard that has each.

    ``rows`` maps, for each shard, the place of a parameter to its row in the shard. ``columns`` are those of
    `ampmon_server.model.parameter_statistics.ColumnOf`.
    """

    names: tuple[str, ...]
    rows: Sequence[Mapping[int, int]]
    columns: Mapping[str, npt.NDArray[Any]]
    scale: Floats

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> ParameterNumbers:
        place: dict[str, int] = {}
        at: list[Ints] = []
        for shard in shards:
            indices = shard.sample.statistics.parameters.tolist()
            names = [shard.parameters[index].name for index in indices]
            at.append(np.array([place.setdefault(name, len(place)) for name in names], np.int64))
        parts = [_columns(shard) for shard in shards]
        added = {name: np.zeros(len(place), part.dtype) for name, part in parts[0].items()}
        with np.errstate(invalid="ignore", over="ignore"):
            for where, part in zip(at, parts, strict=True):
                for name, values in part.items():
                    add = np.maximum if name == "amax" else np.add
                    added[name][where] = add(added[name][where], values)
        rows = [{int(each): row for row, each in enumerate(where)} for where in at]
        return cls(tuple(place), rows, added, np.array(shards[0].sample.scale))

    def values(self, statistic: str) -> Floats:
        return STATISTICS[statistic].values(self.columns.__getitem__, self.scale)

    @property
    def elements(self) -> Ints:
        return self.columns["elements"]

    @property
    def looked(self) -> Ints:
        return self.columns["looked"]

    @property
    def lost(self) -> Ints:
        return np.asarray(self.columns["inf"] + self.columns["nan"])

    @property
    def overflowed(self) -> Flags:
        """Parameters whose elements looked at are all inf or NaN, so whether they are on the grid is unknown."""
        return np.asarray((self.looked > 0) & (self.lost == self.looked))

    @property
    def on_grid(self) -> Flags:
        return np.asarray(self.columns["on_grid"] >= ON_GRID_SHARE * self.looked)

    def matching_indices(self, page: ParameterQuery) -> list[int]:
        """The places of the parameters that a query selects, in its order, before paging."""
        if page.name is not None:
            return [place for place, name in enumerate(self.names) if name == page.name]
        found = np.array(matching_indices(self.names, page.search), np.int64)
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


def _columns(shard: Shard) -> dict[str, npt.NDArray[Any]]:
    one = shard.sample.statistics
    numel = np.array([shard.parameters[each].numel for each in one.parameters.tolist()], np.int64)
    elements, classes = elements_of(one.looked, numel, shard.looked_at), one.classes()
    with np.errstate(invalid="ignore", over="ignore"):  # squares may be infinite or NaN
        squares = one.sum_squares * sampling_error.sampling_weight(one.looked, elements)
    return {
        "elements": elements,
        "looked": one.looked,
        "zeros": one.zeros,
        "subnormal": classes.subnormal + classes.below_grid,
        "on_grid": one.on_grid,
        "inf": one.inf,
        "nan": one.nan,
        "amax": one.amax,
        "sum_squares": squares,
    }


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
    norms = histogram.gradient_norm(every.columns["sum_squares"], every.scale)
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
                _parts(shards, every, place),
                float(norms[place]),
                {name: float(values[place]) for name, values in more.items()},
            )
            for place in page.cut(found)
        ],
    )


def _parts(shards: Sequence[Shard], every: ParameterNumbers, place: int) -> list[_Part]:
    parts = []
    for shard, rows in zip(shards, every.rows, strict=True):
        if (row := rows.get(place)) is not None:
            parameter = shard.parameters[int(shard.sample.statistics.parameters[row])]
            one = shard.sample.statistics.select(np.array([row]))
            numel = np.array([parameter.numel])
            elements = elements_of(one.looked, numel, shard.looked_at)
            parts.append(_Part(parameter, one, int(elements[0])))
    return parts


def sample_of(shards: Sequence[Shard], name: str) -> ParameterSample | None:
    """One parameter of a sampled update, with shards added up; None if no shard has it."""
    every = ParameterNumbers.of(shards)
    if name not in every.names:
        return None
    parts = _parts(shards, every, every.names.index(name))
    elements = sum(part.elements for part in parts)
    first = shards[0].sample
    together = _added(parts)
    return ParameterSample(first.step, first.time, first.scale, elements, together)


class _Part(NamedTuple):
    """A shard of a parameter: its statistics, [1], and how many elements they stand for."""

    parameter: wire.Parameter
    statistics: Statistics
    elements: int


def _row(parts: Sequence[_Part], norm: float, more: Mapping[str, float]) -> ParameterRow:
    """``more`` are the statistics without a field of their own."""
    parameter, one, _ = parts[0]
    if len(parts) > 1:
        one = _added(parts)
    looked = int(one.looked[0])
    amax, amax_kind = split_named(float(one.amax[0]))
    bits, bits_kind = split_named(float(histogram.headroom_bits(one.amax)[0]))
    finite_norm, norm_kind = split_named(norm)
    return ParameterRow(
        name=parameter.name,
        shape=parameter.shape,
        dtype=parameter.dtype,
        numel=sum(part.parameter.numel for part in parts),
        sampled=sum(part.elements for part in parts) > looked,
        **(counts_of(one) | _fractions(parts)),
        on_grid=int(one.on_grid[0]) >= ON_GRID_SHARE * looked,
        on_grid_fraction=int(one.on_grid[0]) / looked if looked else None,
        amax=amax,
        amax_kind=amax_kind,
        headroom_bits=bits if looked else None,
        headroom_bits_kind=bits_kind if looked else None,
        norm=finite_norm,
        norm_kind=norm_kind,
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


def _fractions(parts: Sequence[_Part]) -> dict[str, float | None]:
    """The share of each class of small elements, and its standard error, with shards as strata."""
    elements = np.array([part.elements for part in parts], np.int64)
    if not elements.any():
        return dict.fromkeys([f"{name}{word}" for name in _FRACTIONS for word in ("", "_error")])
    looked = np.array([part.statistics.looked[0] for part in parts])
    small = np.array([part.statistics.classes().small[0] for part in parts])
    squares = np.array([part.statistics.run_squares[0] for part in parts])
    weight = elements / elements.sum()
    variance = sampling_error.share_variance(small, squares, looked[:, None], elements[:, None])
    share = (small / np.maximum(looked, 1)[:, None] * weight[:, None]).sum(0)
    error = sampling_error.standard_error(
        share,
        (variance * weight[:, None] ** 2).sum(0),
        (sampling_error.grain(looked, elements) * weight).max(),
    )
    return {
        **dict(zip(_FRACTIONS, share.tolist(), strict=True)),
        **dict(zip([f"{name}_error" for name in _FRACTIONS], error.tolist(), strict=True)),
    }


def _added(parts: Sequence[_Part]) -> Statistics:
    """Add up the shards of one parameter, whose indices in the headers may differ."""
    same = np.zeros(1, np.int64)
    return Statistics.added([part.statistics.renumbered(same) for part in parts])
