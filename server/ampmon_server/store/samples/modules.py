"""Reads the activation statistics of each module at the newest sampled update in a range of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, bindparam, func, select

from ampmon import wire
from ampmon.numerics.histogram import Statistics, headroom_bits
from ampmon_server.model.series import ModuleSample
from ampmon_server.store.engine.numbers import fields_of
from ampmon_server.store.engine.rows import fetch, of_attempt, of_stream
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.samples.parameters import counts_of
from ampmon_server.store.samples.samples import current_samples
from ampmon_server.store.schema.tables import BLOCK, headers, ledger, module_blocks
from ampmon_server.store.streams.attempts import world_sizes
from ampmon_server.store.streams.scalers import Scaler, StreamSource, unpack_modules


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """Activation statistics of one module. Counts are of the elements looked at in its scaled fp16 output gradients.

    ``elements`` is how many elements these have, 0 if no such gradient came back. ``forward`` is the largest magnitude
    of its output. A non-finite number is null, and its kind is in the field beside it.
    """

    name: str
    kind: str
    elements: int
    looked: int
    zeros: int
    below_grid: int
    subnormal: int
    normal: int
    inf: int
    nan: int
    amax: float | None
    amax_kind: str | None
    headroom_bits: float | None
    headroom_bits_kind: str | None
    forward: float | None
    forward_kind: str | None
    forward_headroom_bits: float | None
    forward_headroom_bits_kind: str | None
    histogram: list[int]


@dataclass(frozen=True, slots=True)
class SampledModules:
    """The requested sampled update: modules in the order of the forward pass, and the ranks whose shards are in it."""

    step: int
    time: int
    ranks: tuple[int, ...]
    modules: list[ModuleRow]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Shard:
    """One rank's part of a sampled update in one attempt, with the modules that its indices refer to."""

    rank: int
    attempt: int
    is_sharded: bool
    sample: Sample
    modules: Sequence[wire.Module]


_LAST = func.max(ledger.c.last_step)
_REACHING = (
    select(ledger.c.attempt, _LAST)
    .join(headers, headers.c.attempt == ledger.c.attempt)
    .where(
        of_stream(ledger),
        of_stream(headers),
        headers.c.modules.is_not(None),
        ledger.c.first_step < bindparam("stop"),
        ledger.c.last_step >= bindparam("start"),
    )
    .group_by(ledger.c.attempt)
    .order_by(_LAST.desc(), ledger.c.attempt.desc())
)
"""Selects the attempts of a stream that measure activations and have updates from ``start`` to ``stop``, and the last
step of each, latest first."""
_HEADER = select(headers.c.layout, headers.c.modules).where(of_attempt(headers))
_LAST_BLOCK = (
    select(module_blocks.c.first_step, *(module_blocks.c[name] for name in BLOCK))
    .where(of_attempt(module_blocks))
    .where(module_blocks.c.first_step < bindparam("stop"))
    .where(module_blocks.c.last_step >= bindparam("start"))
    .order_by(module_blocks.c.first_step.desc())
    .limit(1)
)
"""Selects the newest block of an attempt that reaches into ``start`` to ``stop``."""


def read_newest(
    connection: Connection, scaler: Scaler, *, start: int, stop: int
) -> ModuleSample | None:
    """The newest sample with ``start`` <= step < ``stop``; None if there is none.

    If gradients are sharded, combines the shards of all ranks that started with its attempt and have that step.
    """
    for place, source in enumerate(scaler.sources):
        newest = _newest(connection, source, start, stop)
        if newest is None:
            continue
        step = newest.sample.step
        size = world_sizes(connection, scaler.run_id)[newest.attempt] if newest.is_sharded else 0
        others = [
            _newest(connection, other, step, step + 1)
            for other in scaler.sources[place + 1 :]
            if other.rank < size
        ]
        return _together([newest, *filter(None, others)])
    return None


def _newest(connection: Connection, source: StreamSource, start: int, stop: int) -> _Shard | None:
    """The newest sample of a stream that no later attempt supersedes."""
    newest: _Shard | None = None
    asked = {**source.bound, "start": start, "stop": stop}
    for attempt, last in fetch(connection, _REACHING, asked):
        if last < start:
            break  # there may be thousands of attempts, and those left did not come so far
        sample = _newest_of(connection, source, attempt, start, stop)
        if sample is not None:
            ((layout, modules),) = fetch(connection, _HEADER, {**asked, "attempt": attempt})
            of = source.rank, attempt, layout == "sharded"
            newest, start = _Shard(*of, sample, unpack_modules(modules)), sample.step + 1
    return newest


def _newest_of(
    connection: Connection, source: StreamSource, attempt: int, start: int, stop: int
) -> Sample | None:
    asked = {**source.bound, "attempt": attempt, "start": start}
    # The blocks of one attempt do not overlap. Read one at a time: the first nearly always has a sample.
    while rows := fetch(connection, _LAST_BLOCK, {**asked, "stop": stop}):
        ((first_step, *block),) = rows
        found = current_samples(connection, source, block, attempt)
        samples = [each for each in found if start <= each.step < stop]
        if samples:
            return samples[-1]
        stop = first_step
    return None


def _together(shards: Sequence[_Shard]) -> ModuleSample:
    """Combine the shards of one sample. For modules of the same name, add up counts and take the largest magnitude."""
    places: dict[str, int] = {}
    rows, kinds = [], {}
    for shard in shards:
        of_shard = [shard.modules[place] for place in shard.sample.statistics.parameters.tolist()]
        rows.append(np.array([places.setdefault(each.name, len(places)) for each in of_shard]))
        kinds.update({each.name: each.kind for each in of_shard})
    row = np.concatenate(rows).astype(np.int64)
    elements, forward = np.zeros(len(places), np.int64), np.zeros(len(places))
    np.add.at(elements, row, np.concatenate([each.sample.beside["elements"] for each in shards]))
    with np.errstate(invalid="ignore"):  # NaN counts as the largest
        largest = np.concatenate([each.sample.beside["forward"] for each in shards])
        np.maximum.at(forward, row, largest)
    first = shards[0]
    return ModuleSample(
        step=first.sample.step,
        time=first.sample.time,
        scale=first.sample.scale,
        names=tuple(places),
        kinds=tuple(kinds[name] for name in places),
        elements=elements,
        statistics=Statistics.added(
            [
                each.sample.statistics.renumbered(place)
                for each, place in zip(shards, rows, strict=True)
            ]
        ),
        forward=forward,
        left_out=tuple(each.name for each in first.modules if each.left_out is not None),
        ranks=tuple(each.rank for each in shards),
    )


def rows_of(sample: ModuleSample) -> SampledModules:
    """Convert a sample to rows of plain numbers."""
    return SampledModules(
        sample.step,
        sample.time,
        sample.ranks,
        [_row(sample, row) for row in range(len(sample))],
        sample.left_out,
    )


def _row(sample: ModuleSample, row: int) -> ModuleRow:
    one = sample.statistics.select(np.array([row]))
    looked = bool(one.looked[0])
    return ModuleRow(
        name=sample.names[row],
        kind=sample.kinds[row],
        elements=int(sample.elements[row]),
        **counts_of(one),
        **fields_of("amax", one.amax[0] if looked else None),
        **fields_of("headroom_bits", headroom_bits(one.amax)[0] if looked else None),
        **fields_of("forward", sample.forward[row]),
        **fields_of("forward_headroom_bits", headroom_bits(sample.forward[[row]])[0]),
    )
