"""Sampled gradients: blocks of them in, series and the newest sample out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection, Table, select, update

from ampmon_server.series import combine_shards
from ampmon_server.store import packing, totals
from ampmon_server.store.attempts import Attempt
from ampmon_server.store.derived import derive
from ampmon_server.store.engine import insert_rows
from ampmon_server.store.numbers import split
from ampmon_server.store.packing import Sample
from ampmon_server.store.state import RunState
from ampmon_server.store.streams import Roster, Stream
from ampmon_server.tables import gradient_blocks, gradient_totals, streams


BLOCK_SAMPLES_MAX = 32
"""A block is unpacked whole to read one of its samples."""


def write(
    connection: Connection,
    state: RunState,
    attempt: Attempt,
    stream: Stream,
    samples: Sequence[Sample],
) -> None:
    """Store samples in order of step, and keep the newest with its stream."""
    key = (state.run_id, stream.number)
    stacks = write_blocks(connection, gradient_blocks, state, attempt, stream, samples)
    rows = np.concatenate([totals.total(stack, stream.numel, stream.sample) for stack in stacks])
    ends = (samples[0].step, attempt.number, samples[-1].step)
    insert_rows(
        connection, gradient_totals, [(*key, *ends, totals.samples_to_bytes(rows), len(rows))]
    )
    connection.execute(
        update(streams)
        .where(streams.c.run_id == state.run_id, streams.c.stream == stream.number)
        .values(newest_sample=totals.row_to_bytes(rows))
    )


def write_blocks(
    connection: Connection,
    table: Table,
    state: RunState,
    attempt: Attempt,
    stream: Stream,
    samples: Sequence[Sample],
) -> list[packing.Stack]:
    """Store samples in order of step as blocks, in ``table``; what is in each block."""
    stacks = [
        packing.Stack.of(block)
        for stretch in packing.runs_of_alike(samples)
        for block in _cut(stretch)
    ]
    key = (state.run_id, stream.number)
    insert_rows(connection, table, [(*key, *_block(stack, attempt)) for stack in stacks])
    return stacks


def _block(stack: packing.Stack, attempt: Attempt) -> tuple[int, int, int, bytes, int]:
    first, last = int(stack.steps[0]), int(stack.steps[-1])
    return first, attempt.number, last, packing.block_to_bytes(stack), len(stack.steps)


def _cut(stretch: Sequence[Sample]) -> list[Sequence[Sample]]:
    return [
        stretch[first : first + BLOCK_SAMPLES_MAX]
        for first in range(0, len(stretch), BLOCK_SAMPLES_MAX)
    ]


def summarize(connection: Connection, state: RunState, stream: Stream, roster: Roster) -> None:
    """Put the newest sample's fractions into the run's summary; shards only when all of them have arrived."""
    numbers = [stream.number]
    if stream.layout == "sharded":
        numbers = [each.number for each in roster.siblings(stream.scaler)]
    rows = connection.scalars(
        select(streams.c.newest_sample).where(
            streams.c.run_id == state.run_id, streams.c.stream.in_(numbers)
        )
    ).all()
    newest = [
        totals.series(totals.row_from_bytes(row), exact=True) for row in rows if row is not None
    ]
    if len(newest) < len(numbers):
        return
    combined = combine_shards(newest)
    if not len(combined):
        return
    derived = derive(combined.on_grid)
    if not derived.known[0]:
        return
    state.zero_fraction, state.subnormal_fraction = (
        float(derived.zero[0]),
        float(derived.subnormal[0]),
    )
    state.zero_fraction_error, state.subnormal_fraction_error = (
        float(derived.zero_error[0]),
        float(derived.subnormal_error[0]),
    )
    state.headroom_bits, state.headroom_kind = split(float(derived.headroom_bits[0]))
