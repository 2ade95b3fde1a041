"""Reads sampled gradients: series of sums over parameters, the cells that roll them up, and one sample's parameters.

Cells cover a scaler over all ranks and attempts, like `read_series`. Sharded gradients are added up at the steps that
every rank of the attempt has sampled. Replicated gradients are those of the lowest rank that samples, or of the lowest
rank if another attempt is sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from sqlalchemy import BigInteger, Connection, Engine, Select, bindparam, func, select

from ampmon import wire
from ampmon_server.model.aggregates.gradients import LAYOUT, of_series
from ampmon_server.model.aggregates.gradients import empty as no_cells
from ampmon_server.model.aggregates.merging import Cells, joined, picked
from ampmon_server.model.series import (
    GradientSeries,
    Ints,
    combine_shards,
    empty_gradients,
    join_samples,
    take,
)
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import fetch, of_stream
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.pages.pyramid import Pyramid
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.samples import totals
from ampmon_server.store.schema.tables import BLOCK, gradient_blocks, gradient_rollups
from ampmon_server.store.streams.scalers import (
    Scaler,
    StreamSource,
    current,
    packed_headers,
    scalers_of,
    shards,
    unpack_parameters,
)


_WINDOWS = (1_000, 64_000, INTEGER_MAX)
"""How far back to look for the newest sample, in steps: near first, for it is usually a few hundred away at most."""

GRADIENTS = Pyramid(gradient_rollups, LAYOUT, rows_per_cell=2)


@lru_cache
def reading(overlaid: bool, *packed: str) -> Select[Any]:
    """Select the blocks that reach into ``first`` <= step < ``stop``, of the stream ``number`` of the run ``of``.

    These four are bind parameters. Selects the attempt and the ``packed`` columns. In a stream that never resumed, no
    block before the first of these is read. The statement is cached because building it takes longer than running it.
    """
    table, earlier = gradient_blocks, gradient_blocks.alias()
    of = table.c
    first = bindparam("first", type_=BigInteger)
    statement = (
        select(of.attempt, *(of[name] for name in packed))
        .where(of_stream(table), of.first_step < bindparam("stop"), of.last_step >= first)
        .order_by(of.first_step, of.attempt)
    )
    if overlaid:
        return statement
    begins = select(func.max(earlier.c.first_step)).where(
        of_stream(earlier), earlier.c.first_step <= first
    )
    return statement.where(of.first_step >= func.coalesce(begins.scalar_subquery(), 0))


def next_step(connection: Connection, sources: Sequence[StreamSource], step: int) -> int | None:
    """The first step at or after ``step`` at which one of the ``sources`` may have a sample."""
    if not sources:
        return None
    of = gradient_blocks.c
    found: int | None = connection.scalar(
        select(func.min(of.first_step)).where(
            of.run_id == sources[0].run_id,
            of.stream.in_([source.number for source in sources]),
            of.last_step >= step,
        )
    )
    return None if found is None else max(found, step)


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a sampled update, with the parameters that its indices refer to."""

    rank: int
    sample: Sample
    parameters: Sequence[wire.Parameter]
    looked_at: int | None
    """How many elements are looked at in a larger tensor; None for all."""
    attempt: int


def read_series(
    connection: Connection, scaler: Scaler, *, start: int = 0, stop: int = INTEGER_MAX + 1
) -> GradientSeries:
    """The samples with ``start`` <= step < ``stop``, with shards added up."""
    sources = scaler.sampled
    if not sources:
        return empty_gradients()
    lead, attempts = _series(connection, sources[0], start, stop)
    if len(sources) == 1 or not len(lead):
        return lead
    of = shards(connection, scaler)
    counts = np.array([of[attempt] for attempt in attempts.tolist()], np.int64)
    # No sample is whole that needs a rank without any. While ranks start, this saves reading all others for each.
    idle = (place for place, source in enumerate(sources) if not source.sampled)
    whole = [count for count in np.unique(counts).tolist() if count <= next(idle, len(sources))]
    others = [
        _series(connection, source, start, stop)[0] for source in sources[1 : max(whole, default=1)]
    ]
    parts = [
        combine_shards([take(lead, counts == wanted), *others[: wanted - 1]]) for wanted in whole
    ]
    together = join_samples(parts or [empty_gradients()])
    return take(together, np.argsort(together.step, kind="stable"))


def _series(
    connection: Connection, source: StreamSource, start: int, stop: int
) -> tuple[GradientSeries, Ints]:
    """The samples of a stream in order of step, without superseded ones, and the attempt of each."""
    asked = {**source.bound, "first": start, "stop": stop}
    rows = fetch(connection, reading(source.overlaid, "totals"), asked)
    blocks = [totals.samples_from_bytes([data]) for _, data in rows]
    samples = joined(blocks or [totals.samples_from_bytes([])])
    attempts = np.repeat([attempt for attempt, _ in rows], [len(block) for block in blocks])
    if source.overlaid:
        keep = np.flatnonzero(current(connection, source, samples["step"], attempts))
        order = keep[np.argsort(samples["step"][keep], kind="stable")]
        samples, attempts = picked(samples, order), attempts[order]
    within = (samples["step"] >= start) & (samples["step"] < stop)
    return totals.series(samples[within]), attempts[within]


def read_newest(connection: Connection, scaler: Scaler, step: int) -> list[Shard]:
    """The shards of the newest sample at or before ``step``, lowest rank first. Raises NotFound if there is none."""
    sources = scaler.sampled
    last = min(step, max((source.last_step or 0 for source in sources), default=0))
    for window in _WINDOWS:
        steps = read_series(connection, scaler, start=max(last - window, 0), stop=last + 1).step
        if len(steps):
            return _shards_at(connection, scaler, int(steps[-1]))
    if step < scaler.samples_from:
        raise NotFound(
            f"Samples before step {scaler.samples_from} were pruned: figures show their aggregates."
        )
    raise NotFound(f"No gradient was sampled at or before step {step}.")


def _shards_at(connection: Connection, scaler: Scaler, step: int) -> list[Shard]:
    lowest, *others = scaler.sampled
    lead = _shard(connection, lowest, step)
    wanted = shards(connection, scaler)[lead.attempt]
    return [lead, *(_shard(connection, source, step) for source in others[: wanted - 1])]


def _shard(connection: Connection, source: StreamSource, step: int) -> Shard:
    asked = {**source.bound, "first": step, "stop": step + 1}
    for attempt, *block in fetch(connection, reading(source.overlaid, *BLOCK), asked):
        for sample in current_samples(connection, source, block, attempt):
            if sample.step == step:
                parameters, looked_at = packed_headers(connection, source, [attempt])[attempt]
                declared = unpack_parameters(parameters)
                return Shard(source.rank, sample, declared, looked_at, attempt)
    raise NotFound(f"The sample at step {step} is no longer stored.")


def current_samples(
    connection: Connection, source: StreamSource, block: Sequence[bytes], attempt: int
) -> list[Sample]:
    """The samples of a block that no later attempt supersedes."""
    stack = packing.stack_from_bytes(block)
    if not source.overlaid:
        return stack.samples()
    keep = current(connection, source, stack.steps, np.full(len(stack), attempt))
    return [each for each, kept in zip(stack.samples(), keep.tolist(), strict=True) if kept]


# -- export ------------------------------------------------------------------------------------------------------------


class ExportedSample(NamedTuple):
    """One sampled update on one rank. The sample's indices refer to ``parameters``."""

    scaler: str
    rank: int
    attempt: int
    sample: Sample
    parameters: Sequence[wire.Parameter]


def exported(database: Engine, run_id: UUID) -> Iterator[ExportedSample]:
    """Yield every sample that no later attempt did again, by scaler, then rank, then step. Raises NotFound."""
    with engine.reading(database) as connection:
        found = [
            (scaler.name, replace(source, overlaid=True))  # it may resume meanwhile
            for scaler in scalers_of(connection, run_id.bytes)
            for source in scaler.sources
            if source.sampled
        ]
    for name, source in found:
        yield from _of_source(database, name, source)


def _of_source(database: Engine, name: str, source: StreamSource) -> Iterator[ExportedSample]:
    """Yield the samples of a rank in order of step, those of one block and of others at its steps at a time."""
    after = -1
    known: dict[int, Sequence[wire.Parameter]] = {}
    while True:
        # Anew for each, because ingest may pack blocks together meanwhile.
        with engine.reading(database) as connection:
            asked = {**source.bound, "first": after + 1, "stop": INTEGER_MAX}
            next_block = connection.execute(reading(True, "last_step").limit(1), asked)
            last = next((last for _, last in next_block), None)
            if last is None:
                return
            samples = []
            # One block at a time: with 5000 parameters, it takes 100 MB.
            for attempt, *block in connection.execute(
                reading(True, *BLOCK), {**asked, "stop": last + 1}
            ):
                if attempt not in known:
                    header = packed_headers(connection, source, [attempt])[attempt]
                    known[attempt] = unpack_parameters(header[0])
                of = name, source.rank, attempt
                samples += [
                    ExportedSample(*of, sample, known[attempt])
                    for sample in current_samples(connection, source, block, attempt)
                    if after < sample.step <= last
                ]
        yield from sorted(samples, key=lambda each: each.sample.step)
        after = last


# -- cells -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """The updates that a batch added to a stream, from step ``first`` to ``last``.

    Before the batch, the scaler and the stream were rolled up to ``scaler_edge`` and ``stream_edge``. ``redone``: some
    of their steps were done before. ``parts``: if any was sampled, the streams whose samples count in this attempt.
    ``begins``: these are the first samples of the stream.
    """

    first: int
    last: int
    scaler_edge: int
    stream_edge: int
    redone: bool
    parts: Sequence[StreamSource]
    begins: bool


def together(connection: Connection, parts: Sequence[StreamSource], step: int) -> GradientSeries:
    """The sample at ``step``, added up over its ``parts``; empty until all of them are stored."""
    if any(each.is_before(step) for each in parts):  # saves reading the others for each rank
        return empty_gradients()
    return combine_shards([_series(connection, each, step, step + 1)[0] for each in parts])


def note(connection: Connection, scaler: Scaler, stream: StreamSource, change: Change) -> None:
    """Rebuild the cells that a batch of one rank's updates has changed, and those of pages that it completed.

    Shards of a step are added up when the last rank's sample of it arrives, so that each rank's batch does not read
    the samples of all other ranks again.
    """
    higher = (each for each in scaler.sources if each.sampled and each.rank > stream.rank)
    if change.begins and not scaler.is_sharded and any(True for _ in higher):
        redo(connection, scaler)  # so far, a higher rank stood for the scaler
        return
    counts = any(each.number == stream.number for each in change.parts)
    is_last = counts and not any(each.is_before(change.first) for each in change.parts)
    changed = change.redone or is_last
    before = change.scaler_edge
    if changed:
        series(connection, scaler).refresh(change.first, change.last, before)
    elif scaler.edge > before and any(source.sampled for source in scaler.sampled):
        series(connection, scaler).roll_up(before, scaler.edge - 1)


def redo(connection: Connection, scaler: Scaler) -> None:
    """Rebuild all cells of a scaler, after a change of what its samples are made of."""
    if any(source.sampled for source in scaler.sources):
        series(connection, scaler).roll_up(0, scaler.edge - 1)


def series(connection: Connection, scaler: Scaler) -> WindowedSeries:
    """A scaler's samples. The scaler must have a stream."""
    return WindowedSeries(
        connection,
        GRADIENTS,
        (scaler.run_id, scaler.number),
        partial(read_cells, connection, scaler),
        scaler.samples_from,
        scaler.edge,
        partial(next_step, connection, scaler.sampled),
    )


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's samples in a stretch; see `windows.WindowedSeries.window`."""
    return series(connection, scaler).window(stretch, columns) if scaler.sampled else no_cells()


def read_cells(connection: Connection, scaler: Scaler, first: int, last: int) -> Cells:
    """The samples from step ``first`` to ``last``, both included, as one cell per sample."""
    last = min(last, INTEGER_MAX)
    return of_series(read_series(connection, scaler, start=first, stop=last + 1))
