"""Writes sampled gradients and activations: blocks, totals, and the fractions in the run's summary.

There are never many small blocks. It works like a binary counter: new samples are packed with the block before them
while that block is no larger. If samples arrive one at a time, at most log2(32) blocks are not full, and no sample is
repacked more than log2(32) times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import Connection, Delete, Select, Table, bindparam, delete, select

from ampmon.numerics.histogram import headroom_bits
from ampmon_server.model.series import GradientSeries
from ampmon_server.store.engine.numbers import split
from ampmon_server.store.engine.rows import bound, fetch, insert_rows, of_attempt
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.packing import Sample, Stack
from ampmon_server.store.samples import totals
from ampmon_server.store.schema.tables import gradient_blocks, module_blocks
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import StreamSource
from ampmon_server.store.streams.state import RunState


SAMPLES_MAX = 32
"""The most samples in a block. Reading one of them unpacks the whole block."""

_AT_ONCE = 8
"""Blocks read by one statement: more than there are small ones, unless samples arrived out of order."""

_TOTALS = "totals"
"""The column of a stack with the sums of its samples over parameters."""

_Place: TypeAlias = tuple[bytes, int, int]
"""run_id, stream and attempt. The blocks of one place do not overlap."""


def write(
    connection: Connection,
    attempt: Attempt,
    stream: StreamSource,
    samples: Sequence[Sample],
) -> totals.Samples:
    """Store samples, given in order of step, and return their sums over parameters."""
    stacks = packing.stacks(samples)
    for stack in stacks:
        of = stream.header.numel, stream.header.sample
        stack.columns[_TOTALS] = totals.total(stack, *of)
    _write(connection, gradient_blocks, (*stream.key, attempt.number), stacks)
    return np.concatenate([stack.columns[_TOTALS] for stack in stacks])


def write_modules(
    connection: Connection, attempt: Attempt, stream: StreamSource, samples: Sequence[Sample]
) -> None:
    """Store samples of activations, given in order of step."""
    if samples:
        place = *stream.key, attempt.number
        _write(connection, module_blocks, place, packing.stacks(samples))


def _write(connection: Connection, table: Table, place: _Place, stacks: Sequence[Stack]) -> None:
    """Store stacks of alike neighbours as blocks, packed with those before them."""
    before = _take(connection, table, place, [step for each in stacks for step in each.steps])
    whole = packing.regrouped([*map(_unpacked, before), *stacks], SAMPLES_MAX)
    run_id, stream, attempt = place
    rows = [
        (run_id, stream, int(steps[0]), attempt, int(steps[-1]), len(steps), *_packed(stack))
        for steps, stack in ((stack.steps, stack) for stack in whole)
    ]
    insert_rows(connection, table, rows)


def _packed(stack: Stack) -> tuple[bytes, ...]:
    columns = {**stack.columns}
    sums = columns.pop(_TOTALS, None)
    block = packing.block_to_bytes(Stack(stack.parameters, columns))
    return block if sums is None else (totals.samples_to_bytes(sums), *block)


def _unpacked(block: Sequence[bytes]) -> Stack:
    *sums, counts, magnitudes, bins = block
    stack = packing.stack_from_bytes((counts, magnitudes, bins))
    if sums:
        stack.columns[_TOTALS] = totals.samples_from_bytes(sums)
    return stack


def _take(connection: Connection, table: Table, place: _Place, steps: Sequence[int]) -> list[Any]:
    """Remove and return the packed columns of the blocks to pack with new samples of these ``steps``, in order of step.

    All blocks that overlap the steps are included, so that the blocks of an attempt never overlap.
    """
    of = {**bound(place[:2]), "attempt": place[2]}
    samples, wanted = len(steps), []
    for its_first, its_last, its_samples in _backwards(connection, table, of, int(steps[-1])):
        overlaps = its_last >= steps[0]
        if not overlaps and (its_samples > samples or its_samples + samples > SAMPLES_MAX):
            break
        wanted.append(its_first)
        samples += its_samples
    if not wanted:
        return []
    # Not with RETURNING, which SQLite has since 3.35 only.
    reading, removing = _taking(table)
    taken = fetch(connection, reading, {**of, "wanted": wanted})
    connection.execute(removing, {**of, "wanted": wanted})
    return taken


def _backwards(
    connection: Connection, table: Table, of: Mapping[str, Any], last: int
) -> Iterator[tuple[int, int, int]]:
    """First step, last step and number of samples of the blocks that begin at or before ``last``, newest first."""
    while True:
        some = fetch(connection, _listing(table), {**of, "last": last})
        yield from some
        if len(some) < _AT_ONCE:
            return
        last = some[-1][0] - 1


@lru_cache
def _taking(table: Table) -> tuple[Select[Any], Delete]:
    of = table.c
    wanted = of_attempt(table), of.first_step.in_(bindparam("wanted", expanding=True))
    packed = list(of)[list(of).index(of.samples) + 1 :]
    return select(*packed).where(*wanted).order_by(of.first_step), delete(table).where(*wanted)


@lru_cache
def _listing(table: Table) -> Select[Any]:
    of = table.c
    return (
        select(of.first_step, of.last_step, of.samples)
        .where(of_attempt(table), of.first_step <= bindparam("last"))
        .order_by(of.first_step.desc())
        .limit(_AT_ONCE)
    )


def summarize(state: RunState, sample: GradientSeries) -> None:
    """Put the fractions of a sample, [1], into the run's summary."""
    on_grid = sample.on_grid
    if not on_grid.looked.any():
        return
    state.zero_fraction, _, state.subnormal_fraction = on_grid.shares()[0].tolist()
    state.zero_fraction_error, _, state.subnormal_fraction_error = on_grid.errors()[0].tolist()
    state.headroom_bits, state.headroom_kind = split(float(headroom_bits(on_grid.amax)[0]))
