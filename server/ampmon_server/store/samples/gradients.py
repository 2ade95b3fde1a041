"""Writes sampled gradients: blocks, totals, the newest sample, and the fractions in the run's summary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sqlalchemy import Connection, Table, bindparam, select, update

from ampmon_server.model.series import combine_shards
from ampmon_server.store.engine.engine import fetch
from ampmon_server.store.engine.numbers import split
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.samples import compaction, totals
from ampmon_server.store.samples.derived import derive
from ampmon_server.store.schema.tables import gradient_blocks, gradient_totals, streams
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import Scaler, StreamSource, shards
from ampmon_server.store.streams.state import RunState


_KEEP_NEWEST = (
    update(streams)
    .where(streams.c.run_id == bindparam("of"), streams.c.stream == bindparam("number"))
    .values(newest_sample=bindparam("newest"))
)
_NEWEST = select(streams.c.newest_sample).where(
    streams.c.run_id == bindparam("of"), streams.c.stream.in_(bindparam("numbers", expanding=True))
)


def write(
    connection: Connection,
    state: RunState,
    attempt: Attempt,
    stream: StreamSource,
    samples: Sequence[Sample],
    *,
    late: bool = False,
) -> bool:
    """Store samples, given in order of step, and keep the newest with the stream. Return whether it is among these.

    ``late``: later records of the attempt are stored already, and perhaps later samples.
    """
    stacks = write_blocks(connection, gradient_blocks, state, attempt, stream, samples)
    rows = np.concatenate(
        [totals.total(stack, stream.header.numel, stream.header.sample) for stack in stacks]
    )
    _write_totals(connection, (state.run_id, stream.number, attempt.number), rows)
    if not attempt.newest or (late and _has_later(connection, state, stream, samples[-1].step)):
        return False
    newest = totals.row_to_bytes(rows)
    of = {"of": state.run_id, "number": stream.number, "newest": newest}
    connection.execute(_KEEP_NEWEST, of)
    return True


def _has_later(connection: Connection, state: RunState, stream: StreamSource, step: int) -> bool:
    """Whether the sample kept with the stream is after ``step``."""
    ((held,),) = fetch(connection, _NEWEST, {"of": state.run_id, "numbers": [stream.number]})
    return held is not None and int(totals.row_from_bytes(held)["step"][0]) > step


def write_blocks(
    connection: Connection,
    table: Table,
    state: RunState,
    attempt: Attempt,
    stream: StreamSource,
    samples: Sequence[Sample],
) -> list[packing.Stack]:
    """Store samples, given in order of step, as blocks in ``table``. Return them as stacks of alike neighbours."""
    stacks = packing.stacks(samples)
    if stacks:
        place = (state.run_id, stream.number, attempt.number)
        ends = samples[0].step, samples[-1].step
        before = compaction.take(connection, table, place, *ends, len(samples))
        together = [*map(packing.stack_from_bytes, before), *stacks]
        blocks = [_block(stack) for stack in packing.regrouped(together, compaction.SAMPLES_MAX)]
        compaction.put(connection, table, place, blocks)
    return stacks


def _block(stack: packing.Stack) -> compaction.Packed:
    return int(stack.steps[0]), int(stack.steps[-1]), packing.block_to_bytes(stack), len(stack)


def _write_totals(connection: Connection, place: compaction.Place, rows: totals.Samples) -> None:
    ends = int(rows["step"][0]), int(rows["step"][-1])
    before = compaction.take(connection, gradient_totals, place, *ends, len(rows))
    if before:
        rows = np.concatenate([totals.samples_from_bytes(before), rows])
        rows = rows[np.argsort(rows["step"], kind="stable")]
    chunks = [
        rows[start : start + compaction.SAMPLES_MAX]
        for start in range(0, len(rows), compaction.SAMPLES_MAX)
    ]
    packed = [
        (int(each["step"][0]), int(each["step"][-1]), totals.samples_to_bytes(each), len(each))
        for each in chunks
    ]
    compaction.put(connection, gradient_totals, place, packed)


def summarize(
    connection: Connection, state: RunState, attempt: Attempt, stream: StreamSource, scaler: Scaler
) -> None:
    """Put the newest sample's fractions into the run's summary. Sharded samples wait until all shards have arrived."""
    numbers = [stream.number]
    if stream.header.is_sharded:
        count = shards(connection, scaler)[attempt.number]
        numbers = [source.number for source in scaler.sampled[:count]]
    rows = fetch(connection, _NEWEST, {"of": state.run_id, "numbers": numbers})
    newest = [
        totals.series(totals.row_from_bytes(row), exact=True) for (row,) in rows if row is not None
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
