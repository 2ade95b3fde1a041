"""The parameters of one sampled update, a row each, shards of the same parameter put together. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ampmon import estimates, histogram, wire
from ampmon.histogram import ON_GRID_SHARE, SMALL_CLASSES, Floats, Statistics
from ampmon_server.series import ParameterSample
from ampmon_server.store.gathered import ALL, Gathered, Page
from ampmon_server.store.numbers import KINDS, split
from ampmon_server.store.samples import Shard


_FRACTIONS = tuple(f"{name}_fraction" for name in SMALL_CLASSES)


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter's scaled gradient. Counts are of elements looked at; ``norm`` is unscaled.

    Fractions are of all elements, each with its standard error, 0 where all were looked at. Of a sample, ``sampled``,
    they and the norm are estimates, amax is a lower bound and headroom an upper one. Where an amax or a norm is not
    finite it is null with its kind beside it; fractions and headroom are null where nothing was looked at. ``shape`` is
    that of the local shard where gradients are sharded.
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
    histogram: list[int]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled update that was asked for, its ``scale``, and the ranks whose shards are in it.

    ``parameters`` are those of the page that was asked for. Of all of them there are ``total``, of which a search
    ``found`` some; ``on_grid`` are on fp16's grid, of ``overflowed`` every element is inf or NaN, and ``sampled`` says
    whether of any only a sample was looked at.
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


def rows_of(shards: Sequence[Shard], page: Page = ALL) -> Sampled:
    """A page of the parameters of all shards."""
    every = Gathered.of(shards)
    found = every.sought(page)
    first = shards[0].sample
    scale, kind = split(first.scale)
    return Sampled(
        first.step,
        first.time,
        scale,
        KINDS[kind],
        [shard.rank for shard in shards],
        len(every),
        len(found),
        int((every.on_grid & ~every.overflowed).sum()),
        int(every.overflowed.sum()),
        bool((every.looked < every.elements).any()),
        [_row(_parts(shards, every, place), first.scale) for place in page.cut(found)],
    )


def _parts(shards: Sequence[Shard], every: Gathered, place: int) -> list[_Part]:
    """The shards of a parameter."""
    parts = []
    for shard, rows in zip(shards, every.rows, strict=True):
        if (row := rows.get(place)) is not None:
            parameter = shard.parameters[int(shard.sample.statistics.parameters[row])]
            one = shard.sample.statistics.select(np.array([row]))
            numel = np.array([parameter.numel])
            elements = estimates.elements_of(one.looked, numel, shard.looked_at)
            parts.append(_Part(parameter, one, int(elements[0])))
    return parts


def sample_of(shards: Sequence[Shard], name: str) -> ParameterSample | None:
    """One parameter of a sampled update, its shards added up; None where it is in none of them."""
    every = Gathered.of(shards)
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


def _row(parts: Sequence[_Part], scale: float) -> ParameterRow:
    parameter, one, _ = parts[0]
    if len(parts) > 1:
        one = _added(parts)
    classes = one.classes()
    looked = int(one.looked[0])
    amax, amax_kind = split(float(one.amax[0]))
    bits, bits_kind = split(float(histogram.headroom_bits(one.amax)[0]))
    with np.errstate(invalid="ignore", over="ignore"):  # squares may be infinite or NaN
        norm, norm_kind = split(
            float(histogram.gradient_norm(_sum_squares(parts), np.array([scale]))[0])
        )
    return ParameterRow(
        name=parameter.name,
        shape=parameter.shape,
        dtype=parameter.dtype,
        numel=sum(part.parameter.numel for part in parts),
        looked=looked,
        sampled=sum(part.elements for part in parts) > looked,
        zeros=int(one.zeros[0]),
        below_grid=int(classes.below_grid[0]),
        subnormal=int(classes.subnormal[0]),
        normal=int(classes.normal[0]),
        inf=int(one.inf[0]),
        nan=int(one.nan[0]),
        **_fractions(parts),
        on_grid=int(one.on_grid[0]) >= ON_GRID_SHARE * looked,
        on_grid_fraction=int(one.on_grid[0]) / looked if looked else None,
        amax=amax,
        amax_kind=KINDS[amax_kind],
        headroom_bits=bits if looked else None,
        headroom_bits_kind=KINDS[bits_kind] if looked else None,
        norm=norm,
        norm_kind=KINDS[norm_kind],
        histogram=one.histogram[0].tolist(),
    )


def _sum_squares(parts: Sequence[_Part]) -> Floats:
    """The sum of squares of all elements, [1], as those looked at tell it."""
    estimated = [
        part.statistics.sum_squares * (part.elements / np.maximum(part.statistics.looked, 1))
        for part in parts
    ]
    return np.asarray(np.sum(estimated, axis=0))


def _fractions(parts: Sequence[_Part]) -> dict[str, float | None]:
    """The share of each class of small elements, and its standard error, shards being strata."""
    elements = np.array([part.elements for part in parts], np.int64)
    if not elements.any():
        return dict.fromkeys([f"{name}{word}" for name in _FRACTIONS for word in ("", "_error")])
    looked = np.array([part.statistics.looked[0] for part in parts])
    small = np.array([part.statistics.classes().small[0] for part in parts])
    squares = np.array([part.statistics.run_squares[0] for part in parts])
    weight = elements / elements.sum()
    variance = estimates.share_variance(small, squares, looked[:, None], elements[:, None])
    share = (small / np.maximum(looked, 1)[:, None] * weight[:, None]).sum(0)
    error = estimates.standard_error(
        share,
        (variance * weight[:, None] ** 2).sum(0),
        (estimates.grain(looked, elements) * weight).max(),
    )
    return {
        **dict(zip(_FRACTIONS, share.tolist(), strict=True)),
        **dict(zip([f"{name}_error" for name in _FRACTIONS], error.tolist(), strict=True)),
    }


def _added(parts: Sequence[_Part]) -> Statistics:
    """The shards of one parameter, whose places in their headers may differ, as one."""
    same = np.zeros(1, np.int64)
    return Statistics.added([part.statistics.renumbered(same) for part in parts])
