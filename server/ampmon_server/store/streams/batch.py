"""Splits a batch by stream, and makes all checks that need no database. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon_server.store.engine.errors import BadBatch
from ampmon_server.store.streams.activations import ModuleActivations


@dataclass(slots=True)
class StreamBatch:
    """One stream's records of a batch, in order of seq, each seq once.

    ``places`` are their indices in the batch, for error messages. ``statistics`` holds the gradients by place, and
    ``activations`` likewise.
    """

    name: str
    places: list[int] = field(default_factory=list)
    records: list[wire.Record] = field(default_factory=list)
    statistics: dict[int, Statistics] = field(default_factory=dict)
    activations: dict[int, ModuleActivations] = field(default_factory=dict)

    @property
    def seqs(self) -> list[int]:
        return [record.seq for record in self.records]

    def take(self, indices: Sequence[int]) -> StreamBatch:
        """The records at ``indices``, which must be in order."""
        return self if len(indices) == len(self.records) else self.at(indices)

    def at(self, indices: Sequence[int]) -> StreamBatch:
        """The records at ``indices``, in that order."""
        return StreamBatch(
            self.name,
            [self.places[index] for index in indices],
            [self.records[index] for index in indices],
            self.statistics,
            self.activations,
        )


def divide(batch: wire.Batch) -> dict[str, StreamBatch]:
    """Split the records of a batch by stream name. Raises BadBatch for an invalid record."""
    _check_headers(batch)
    shares: dict[str, StreamBatch] = {}
    for place, record in enumerate(batch.records):
        share = shares.get(record.stream)
        if share is None:
            share = shares[record.stream] = StreamBatch(record.stream)
        share.places.append(place)
        share.records.append(record)
    return {name: _checked(_ordered(share)) for name, share in shares.items()}


def _ordered(share: StreamBatch) -> StreamBatch:
    seqs = share.seqs
    if all(map(int.__lt__, seqs, seqs[1:])):
        return share
    first: dict[int, int] = {}
    for index, seq in enumerate(seqs):
        first.setdefault(seq, index)
    return share.at([first[seq] for seq in sorted(first)])


def _checked(share: StreamBatch) -> StreamBatch:
    ordinal = -1
    sampled: dict[int, wire.Gradients] = {}
    for place, record in zip(share.places, share.records, strict=True):
        if type(record) is not wire.Update:
            if type(record) is wire.Scalars:
                _check_scalars(record, place)
            continue
        if not share.name:
            raise BadBatch(
                f"records[{place}].stream",
                "an update needs a scaler, but the stream's name is empty",
            )
        if record.ordinal <= ordinal:
            raise BadBatch(
                f"records[{place}].ordinal", f"{record.ordinal} after {ordinal}: it must increase"
            )
        ordinal = record.ordinal
        _check_times(record, place)
        if record.gradients is not None:
            sampled[place] = record.gradients
        if record.activations is not None:
            share.activations[place] = _activations(record.activations, place)
    share.statistics.update(_all_statistics(sampled))
    return share


def _check_headers(batch: wire.Batch) -> None:
    for place, header in enumerate(batch.headers):
        if isinstance(header, wire.AttemptHeader):
            for name in ("run_id", "attempt_id"):
                if getattr(header, name) != getattr(batch, name):
                    raise BadBatch(f"headers[{place}].{name}", f"it is not the batch's {name}")
        else:
            for index, parameter in enumerate(header.parameters):
                if parameter.numel > wire.COUNT_MAX:
                    raise BadBatch(
                        f"headers[{place}].parameters[{index}].shape",
                        "2^53 elements or more",
                    )


def _check_times(update: wire.Update, place: int) -> None:
    duration = update.duration
    if 0 <= update.cost <= wire.COUNT_MAX and (duration is None or 0 <= duration <= wire.COUNT_MAX):
        return
    for name in ("duration", "cost"):
        value = getattr(update, name)
        if value is not None and not 0 <= value <= wire.COUNT_MAX:
            raise BadBatch(f"records[{place}].{name}", f"{value} is not a duration in microseconds")


def _check_scalars(record: wire.Scalars, place: int) -> None:
    for name, value in record.values.items():
        if value is None and name not in record.kinds:
            raise BadBatch(f"records[{place}].kinds", f"the value {name!r} is null without a kind")


def _all_statistics(sampled: dict[int, wire.Gradients]) -> dict[int, Statistics]:
    if len(sampled) > 1:
        with suppress(ValueError):  # decoding one by one shows whether any is at fault, and which
            together = Statistics.of_alike(list(sampled.values()))
            found = dict(zip(sampled, together, strict=True))
            for place, statistics in found.items():
                _check_sums(statistics, f"records[{place}].gradients")
            return found
    return {place: _statistics(gradients, place) for place, gradients in sampled.items()}


def _statistics(gradients: wire.Gradients, place: int) -> Statistics:
    try:
        statistics = Statistics.from_wire(gradients)
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        raise BadBatch(f"records[{place}].{name}", reason) from None
    _check_sums(statistics, f"records[{place}].gradients")
    return statistics


def _activations(record: wire.Activations, place: int) -> ModuleActivations:
    try:
        activations = ModuleActivations.from_wire(record)
    except ValueError as error:
        name, _, reason = str(error).partition(": ")
        raise BadBatch(f"records[{place}].activations.{name}", reason) from None
    _check_sums(activations.statistics, f"records[{place}].activations.gradients")
    return activations


def _check_sums(statistics: Statistics, field: str) -> None:
    """Raise BadBatch unless sums over parameters stay exact and within what JSON can hold."""
    for name in ("looked", "histogram"):
        counted = float(getattr(statistics, name).sum(dtype=np.float64))
        if not math.isfinite(counted) or counted > wire.COUNT_MAX:
            raise BadBatch(f"{field}.{name}", f"too many elements: {counted:.3g}")
