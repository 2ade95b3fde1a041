"""Converts records to rows of the tables, checked against the header of their stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ampmon import wire
from ampmon.numerics.histogram import Statistics
from ampmon_server.model.aggregates.scalars import ROWS as SCALAR_ROWS
from ampmon_server.model.aggregates.scalars import Rows as ScalarRows
from ampmon_server.model.aggregates.updates import ROWS
from ampmon_server.model.aggregates.updates import Rows as UpdateRows
from ampmon_server.model.series import EVENTS
from ampmon_server.store.engine.errors import BadBatch
from ampmon_server.store.engine.numbers import INTEGER_MAX, KINDS, join, json_text, split_pair
from ampmon_server.store.pages.packing import Sample
from ampmon_server.store.streams.activations import ModuleActivations, origin_of
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.streams import IngestStream


Row: TypeAlias = tuple[Any, ...]

EVENT_CODES = {event: code for code, event in enumerate(EVENTS)}
PATHS = {"plain": 1, "unscaled": 2, "fused": 4}
"""Bits of an update's `paths`. Append only."""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes table rows, in column order, for a stream of an attempt. ``place`` is a record's index in its batch."""

    run_id: bytes
    stream: IngestStream
    attempt: Attempt

    def step(self, ordinal: int, place: int) -> int:
        """Return the step of an ordinal. Raises BadBatch if JavaScript cannot represent it exactly."""
        step = self.attempt.origin + ordinal
        if step > INTEGER_MAX:
            raise BadBatch(f"records[{place}].ordinal", f"step {step} is beyond 2^53")
        return step

    def updates(self, updates: Sequence[wire.Update]) -> UpdateRows:
        return np.fromiter(map(self._update, updates), ROWS, len(updates))

    def _update(self, update: wire.Update) -> Row:
        skipped = paths = 0
        for optimizer in update.optimizers:
            paths |= PATHS[optimizer.path]
            skipped |= optimizer.skipped
        return (
            self.attempt.origin + update.ordinal,
            self.attempt.number,
            update.time,
            update.scale + 0.0,  # turns -0.0 into 0.0
            update.scale_after + 0.0,
            update.growth_tracker,
            EVENT_CODES[update.event],
            skipped,
            update.gradients is not None,
            paths,
            -1 if update.duration is None else round(update.duration * 1000),
            round(update.cost * 1000),
            -1 if update.memory_peak is None else update.memory_peak,
        )

    def skips(
        self, update: wire.Update, place: int, activations: ModuleActivations | None
    ) -> list[Row]:
        """A row for each optimizer that skipped. Raises BadBatch for culprits or modules that are not in the header."""
        if update.origin_module is not None and update.origin_module >= self.stream.module_count:
            raise BadBatch(
                f"records[{place}].origin_module",
                f"index {update.origin_module} of {self.stream.module_count} modules in the header",
            )
        began = *origin_of(update, activations), update.loss
        return [
            (*self._skip(update, index, f"records[{place}].optimizers[{index}]"), *began)
            for index, optimizer in enumerate(update.optimizers)
            if optimizer.skipped
        ]

    def _skip(self, update: wire.Update, index: int, field: str) -> Row:
        optimizer = update.optimizers[index]
        for position, culprit in enumerate(optimizer.culprits):
            if culprit.parameter >= self.stream.parameter_count:
                raise BadBatch(
                    f"{field}.culprits[{position}]",
                    f"parameter {culprit.parameter} of {self.stream.parameter_count} in the header",
                )
        return (
            self.run_id,
            self.attempt.origin + update.ordinal,
            self.stream.number,
            self.attempt.number,
            index,
            update.time,
            optimizer.optimizer,
            optimizer.path,
            _cause(optimizer.culprits),
            *split_pair(update.scale, update.scale_after),
            json_text([[each.parameter, each.inf, each.nan] for each in optimizer.culprits]),
            optimizer.culprit_order,
            max(optimizer.culprit_parameters, len(optimizer.culprits)),
        )

    def sample(self, update: wire.Update, statistics: Statistics, place: int) -> Sample:
        """Return the sampled gradients of an update. Raises BadBatch for parameters that are not in the header."""
        greatest = int(statistics.parameters.max(initial=-1))
        if greatest >= self.stream.parameter_count:
            raise BadBatch(
                f"records[{place}].gradients.parameters",
                f"index {greatest} of {self.stream.parameter_count} in the header",
            )
        step = self.attempt.origin + update.ordinal
        return Sample(step, update.time, update.scale, statistics)

    def modules(self, update: wire.Update, activations: ModuleActivations, place: int) -> Sample:
        """Return the sampled activations of an update. Raises BadBatch for modules that are not in the header."""
        greatest = int(activations.statistics.parameters.max(initial=-1))
        if greatest >= self.stream.module_count:
            raise BadBatch(
                f"records[{place}].activations.gradients.parameters",
                f"index {greatest} of {self.stream.module_count} modules in the header",
            )
        return activations.sample(self.attempt.origin + update.ordinal, update)

    def event(self, event: wire.Event, place: int) -> Row:
        return (
            self.run_id,
            self.stream.number,
            self.attempt.number,
            event.seq,
            event.time,
            event.kind,
            None if event.ordinal is None else self.step(event.ordinal, place),
            json_text(event.detail),
        )

    def scalars(self, placed: Sequence[tuple[int, wire.Scalars]]) -> dict[str, ScalarRows]:
        """The values in records by name, in the order of the records. Raises BadBatch."""
        found: dict[str, list[Row]] = {}
        for place, record in placed:
            step, user = self.step(record.ordinal, place), record.user_step
            for name, value in record.values.items():
                known = join(value, KINDS.index(record.kinds[name]) if value is None else 0)
                row = (step, self.attempt.number, record.time, known, -1 if user is None else user)
                found.setdefault(name, []).append(row)
        return {name: _scalars(rows) for name, rows in found.items()}


def _scalars(logged: Sequence[Row]) -> ScalarRows:
    rows = np.array(logged, SCALAR_ROWS)
    rows["value"] += 0.0  # turns -0.0 into 0.0
    return rows


def _cause(culprits: Sequence[wire.Culprit]) -> str:
    """What the culprits' gradients contain: inf, nan or both; ``unknown`` if neither was found."""
    inf = any(culprit.inf for culprit in culprits)
    nan = any(culprit.nan for culprit in culprits)
    return "inf+nan" if inf and nan else "inf" if inf else "nan" if nan else "unknown"
