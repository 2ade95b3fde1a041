"""Reads sampled gradients for an export: every parameter of every sample of a run, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Engine

from ampmon import wire
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.samples.samples import current_samples, reading
from ampmon_server.store.schema.tables import BLOCK
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
