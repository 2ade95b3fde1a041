"""The parameters of one sampled update, a row each, shards of the same parameter put together. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampmon import histogram, wire
from ampmon.histogram import ON_GRID_SHARE, Ints, Statistics
from ampmon_server.store.numbers import KINDS, split
from ampmon_server.store.samples import Shard


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """One parameter's scaled gradient. Counts are of elements looked at; ``norm`` is unscaled.

    Where an amax or a norm is not finite it is null with its kind beside it; headroom is null where nothing was
    looked at. ``shape`` is that of the local shard where gradients are sharded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numel: int
    looked: int
    zeros: int
    below_grid: int
    subnormal: int
    normal: int
    inf: int
    nan: int
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
    """The sampled update that was asked for, and the ranks whose shards are in it."""

    step: int
    time: int
    ranks: list[int]
    parameters: list[ParameterRow]


def rows_of(shards: Sequence[Shard]) -> Sampled:
    """The parameters of all shards in the order of the first that has them."""
    gathered: dict[str, list[tuple[wire.Parameter, Statistics]]] = {}
    for shard in shards:
        statistics = shard.sample.statistics
        for row, index in enumerate(statistics.parameters.tolist()):
            parameter = shard.parameters[index]
            gathered.setdefault(parameter.name, []).append(
                (parameter, statistics.select(np.array([row])))
            )
    first = shards[0].sample
    return Sampled(
        first.step,
        first.time,
        [shard.rank for shard in shards],
        [_row(parts, first.scale) for parts in gathered.values()],
    )


def _row(parts: Sequence[tuple[wire.Parameter, Statistics]], scale: float) -> ParameterRow:
    parameter, one = parts[0]
    if len(parts) > 1:
        one = _added([statistics for _, statistics in parts])
    classes = one.classes()
    looked = int(one.looked[0])
    amax, amax_kind = split(float(one.amax[0]))
    bits, bits_kind = split(float(histogram.headroom_bits(one.amax)[0]))
    with np.errstate(invalid="ignore", over="ignore"):
        norm, norm_kind = split(
            float(histogram.gradient_norm(one.sum_squares, np.array([scale]))[0])
        )
    return ParameterRow(
        name=parameter.name,
        shape=parameter.shape,
        dtype=parameter.dtype,
        numel=sum(each.numel for each, _ in parts),
        looked=looked,
        zeros=int(one.zeros[0]),
        below_grid=int(classes.below_grid[0]),
        subnormal=int(classes.subnormal[0]),
        normal=int(classes.normal[0]),
        inf=int(one.inf[0]),
        nan=int(one.nan[0]),
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


def _added(parts: Sequence[Statistics]) -> Statistics:
    def together(name: str) -> Ints:
        return np.asarray(np.sum([getattr(part, name) for part in parts], axis=0))

    squares = [float(part.sum_squares[0]) for part in parts]
    return Statistics(
        parameters=parts[0].parameters,
        looked=together("looked"),
        zeros=together("zeros"),
        on_grid=together("on_grid"),
        inf=together("inf"),
        nan=together("nan"),
        amax=np.max([part.amax for part in parts], axis=0),
        sum_squares=np.array(
            [math.fsum(squares) if all(map(math.isfinite, squares)) else sum(squares)]
        ),
        histogram=together("histogram"),
    )
