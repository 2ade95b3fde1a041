"""Reads sampled gradients for an export: every parameter of every sample of a run, in pieces of bounded size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, Engine, Row, Select, select, tuple_

from ampmon import wire
from ampmon_server.store.engine import engine
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.samples.samples import current_samples
from ampmon_server.store.schema.tables import BLOCK, gradient_blocks
from ampmon_server.store.streams.scalers import (
    StreamSource,
    packed_headers,
    scalers_of,
    unpack_parameters,
)


class ExportedSample(NamedTuple):
    """One sampled update on one rank. The sample's indices refer to ``parameters``."""

    scaler: str
    rank: int
    attempt: int
    sample: Sample
    parameters: Sequence[wire.Parameter]


def read_samples(database: Engine, run_id: UUID) -> Iterator[ExportedSample]:
    """Yield every sample that no later attempt did again, by scaler, then rank, then step. Raises NotFound."""
    with engine.reading(database) as connection:
        found = [
            (scaler.name, source)
            for scaler in scalers_of(connection, run_id.bytes)
            for source in scaler.sources
            if source.sampled
        ]
    for name, source in found:
        held: list[ExportedSample] = []
        for first, samples in _of_source(database, name, source):
            # A start in the middle of the one before has blocks among that one's.
            held.sort(key=_step)
            before = bisect_left(held, first, key=_step)
            yield from held[:before]
            held = [*held[before:], *samples]
        yield from sorted(held, key=_step)


def _step(of: ExportedSample) -> int:
    return of.sample.step


def _of_source(
    database: Engine, name: str, source: StreamSource
) -> Iterator[tuple[int, list[ExportedSample]]]:
    """Yield a rank's blocks of samples, each with its first step, in order of that."""
    after = (-1, -1)
    last: dict[int, int] = {}
    known: dict[int, Sequence[wire.Parameter]] = {}
    while True:
        # One block at a time: with 5000 parameters, it takes 100 MB.
        with engine.reading(database) as connection:
            row = _block(connection, source, after, last)
            if row is None:
                return
            kept = current_samples(
                connection, source, [getattr(row, name) for name in BLOCK], row.attempt
            )
            if row.attempt not in known:
                header = packed_headers(connection, source, [row.attempt])[row.attempt]
                known[row.attempt] = unpack_parameters(header[0])
        new = [sample for sample in kept if sample.step > last.get(row.attempt, -1)]
        of = name, source.rank, row.attempt
        yield row.first_step, [ExportedSample(*of, sample, known[row.attempt]) for sample in new]
        after = max(after, (row.first_step, row.attempt))
        last[row.attempt] = row.last_step


def _block(
    connection: Connection, source: StreamSource, after: tuple[int, int], last: Mapping[int, int]
) -> Row[Any] | None:
    """The block with the samples that follow those of the block ``after``, given the ``last`` step of each attempt."""
    table = gradient_blocks.c
    key, mine = (table.first_step, table.attempt), table.run_id == source.run_id
    mine &= table.stream == source.number
    # Ingest may have packed blocks of the newest attempt together with those before them meanwhile.
    newest = max(last, default=-1)
    same = select(*key, table.last_step).where(mine, table.attempt == newest)
    before = same.where(table.first_step <= after[0]).order_by(table.first_step.desc()).limit(1)
    found = connection.execute(before).first()
    if found is not None and found.last_step > last[newest]:
        which = tuple_(*key) == tuple_(*found[:2])
    else:
        which = tuple_(*key) > tuple_(*after)
    columns = *key, table.last_step, *(table[name] for name in BLOCK)
    blocks: Select[Any] = select(*columns).where(mine, which)
    return connection.execute(blocks.order_by(*key).limit(1)).first()
