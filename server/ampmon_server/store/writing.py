"""A batch's new records as rows, and what they change in the totals of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import Connection, select

from ampmon import wire
from ampmon_server.series import EVENTS
from ampmon_server.store import gradients
from ampmon_server.store.attempts import Attempt
from ampmon_server.store.batch import Share
from ampmon_server.store.counts import Mark, change, count
from ampmon_server.store.engine import insert_rows
from ampmon_server.store.errors import BadBatch
from ampmon_server.store.numbers import INTEGER_MAX, KINDS, json_text, split, split_pair
from ampmon_server.store.packing import Sample
from ampmon_server.store.state import RunState
from ampmon_server.store.streams import Roster, Stream
from ampmon_server.tables import events, scalars, skips, updates


Row = tuple[Any, ...]

EVENT_CODES = {event: code for code, event in enumerate(EVENTS)}
PATHS = {"plain": 1, "unscaled": 2, "fused": 4}
"""Bits of `updates.paths`. Append only."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the new records of one stream of a batch within a transaction."""

    connection: Connection
    state: RunState
    roster: Roster
    attempt: Attempt

    def write(self, share: Share) -> None:
        """Store records that are not held yet. Raises BadBatch for those that cannot be."""
        stream = self.roster.mine(share.name)
        kinds: dict[type, list[tuple[int, Any]]] = {
            wire.Update: [],
            wire.Event: [],
            wire.Scalars: [],
        }
        for place, record in zip(share.places, share.records, strict=True):
            kinds[type(record)].append((place, record))
        if kinds[wire.Update]:
            self._updates(stream, kinds[wire.Update], share)
        self._events(stream, kinds[wire.Event])
        self._scalars(stream, kinds[wire.Scalars])
        newest = max(record.time for record in share.records)
        self.state.records += len(share.records)
        self.state.last_time = max(self.state.last_time or 0, newest)

    def step(self, ordinal: int, place: int) -> int:
        step = self.attempt.origin + ordinal
        if step > INTEGER_MAX:
            raise BadBatch(f"records[{place}].ordinal", f"step {step} is beyond 2^53")
        return step

    # -- updates ----------------------------------------------------------------------------------------------------

    def _updates(self, stream: Stream, placed: list[tuple[int, wire.Update]], share: Share) -> None:
        # Ordinals rise within a batch, so the last step is the greatest.
        self.step(placed[-1][1].ordinal, placed[-1][0])
        rows = [self._update_row(stream, update) for _, update in placed]
        marks = [Mark(stream.number, row[2], row[3], row[10], row[11]) for row in rows]
        self._count(stream, marks)
        insert_rows(self.connection, updates, rows)
        insert_rows(
            self.connection,
            skips,
            [row for place, update in placed for row in self._skip_rows(stream, update, place)],
        )
        samples = [
            self._sample(stream, update, place, share)
            for place, update in placed
            if update.gradients is not None
        ]
        if samples:
            gradients.write(self.connection, self.state, self.attempt, stream, samples)
        self._now(stream, [update for _, update in placed], samples)

    def _update_row(self, stream: Stream, update: wire.Update) -> Row:
        scale, after, kinds = update.scale, update.scale_after, 0
        if not (math.isfinite(scale) and math.isfinite(after)):
            scale, after, kinds = split_pair(scale, after)  # type: ignore[assignment]
        skipped = paths = 0
        for optimizer in update.optimizers:
            paths |= PATHS[optimizer.path]
            skipped |= optimizer.skipped
        return (
            self.state.run_id,
            stream.number,
            self.attempt.origin + update.ordinal,
            self.attempt.number,
            update.time,
            scale,
            after,
            kinds,
            update.growth_tracker,
            EVENT_CODES[update.event],
            int(skipped),
            int(update.gradients is not None),
            paths,
            None if update.duration is None else round(update.duration * 1000),
            round(update.cost * 1000),
            update.memory_peak,
        )

    def _skip_rows(self, stream: Stream, update: wire.Update, place: int) -> list[Row]:
        return [
            self._skip_row(stream, update, index, f"records[{place}].optimizers[{index}]")
            for index, optimizer in enumerate(update.optimizers)
            if optimizer.skipped
        ]

    def _skip_row(self, stream: Stream, update: wire.Update, index: int, field: str) -> Row:
        optimizer = update.optimizers[index]
        for position, culprit in enumerate(optimizer.culprits):
            if culprit.parameter >= stream.parameter_count:
                raise BadBatch(
                    f"{field}.culprits[{position}]",
                    f"parameter {culprit.parameter} of {stream.parameter_count} in the header",
                )
        return (
            self.state.run_id,
            self.attempt.origin + update.ordinal,
            stream.number,
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

    def _sample(self, stream: Stream, update: wire.Update, place: int, share: Share) -> Sample:
        statistics = share.statistics[place]
        if len(statistics) and int(statistics.parameters.max()) >= stream.parameter_count:
            raise BadBatch(
                f"records[{place}].gradients.parameters",
                f"index {int(statistics.parameters.max())} of {stream.parameter_count} in the header",
            )
        return Sample(self.attempt.origin + update.ordinal, update.time, update.scale, statistics)

    def _count(self, stream: Stream, marks: Sequence[Mark]) -> None:
        """Bring the totals of the run and of the stream up to date; before the rows are inserted."""
        siblings = self.roster.siblings(stream.scaler)
        first, last = marks[0].step, marks[-1].step
        done = max((each.last_step for each in siblings if each.last_step is not None), default=-1)
        stored: list[Mark] = []
        if first <= done:
            stored = self._stored(siblings, first, last)
        self.state.count(change(stored, marks) if stored else count(marks))
        own = change([mark for mark in stored if mark.stream == stream.number], marks)
        stream.updates += own.updates
        stream.sampled += own.sampled
        stream.first_step = first if stream.first_step is None else min(stream.first_step, first)
        stream.last_step = last if stream.last_step is None else max(stream.last_step, last)
        self.roster.save(stream)
        self.state.last_step = max(self.state.last_step or 0, last)

    def _stored(self, siblings: Sequence[Stream], first: int, last: int) -> list[Mark]:
        table = updates.c
        rows = self.connection.execute(
            select(table.stream, table.step, table.attempt, table.skipped, table.sampled).where(
                table.run_id == self.state.run_id,
                table.stream.in_([stream.number for stream in siblings]),
                table.step.between(first, last),
            )
        )
        return [Mark(*row) for row in rows]

    def _now(self, stream: Stream, new: Sequence[wire.Update], samples: Sequence[Sample]) -> None:
        """What the summary says of the present, and of the monitor's cost."""
        timed = [update for update in new if update.duration is not None]
        if timed:
            durations = [update.duration or 0.0 for update in timed]
            self.state.duration_us += sum(durations)
            self.state.cost_us += sum(update.cost for update in timed)
            self.state.typical_update(median(durations), len(durations))
        if not self.attempt.newest or stream.scaler != self.roster.first_scaler:
            return
        self.state.scale, self.state.scale_kind = split(new[-1].scale_after)
        if samples:
            gradients.summarize(self.connection, self.state, stream, self.roster)

    # -- the others -------------------------------------------------------------------------------------------------

    def _events(self, stream: Stream, placed: Sequence[tuple[int, wire.Event]]) -> None:
        insert_rows(
            self.connection,
            events,
            [self._event_row(stream, event, place) for place, event in placed],
        )
        for _, event in placed:
            self._heed(event)

    def _event_row(self, stream: Stream, event: wire.Event, place: int) -> Row:
        return (
            self.state.run_id,
            stream.number,
            self.attempt.number,
            event.seq,
            event.time,
            event.kind,
            None if event.ordinal is None else self.step(event.ordinal, place),
            json_text(event.detail),
        )

    def _heed(self, event: wire.Event) -> None:
        if event.kind == "error":
            self.state.errors += _at_least_one(event.detail.get("repeat"))
        elif event.kind == "dropped":
            self.state.dropped += _at_least_one(event.detail.get("count"))
        elif event.kind == "disabled" and self.roster.first_scaler is None:
            self.state.disabled = 1

    def _scalars(self, stream: Stream, placed: Sequence[tuple[int, wire.Scalars]]) -> None:
        rows = [
            (
                self.state.run_id,
                stream.number,
                name,
                self.step(record.ordinal, place),
                self.attempt.number,
                record.time,
                *(split(value) if value is not None else (None, KINDS.index(record.kinds[name]))),
                record.user_step,
            )
            for place, record in placed
            for name, value in record.values.items()
        ]
        insert_rows(self.connection, scalars, rows, replace=True)


def _cause(culprits: Sequence[wire.Culprit]) -> str:
    """What was found in the gradients: inf, nan, both, or nothing that anyone could name."""
    inf = any(culprit.inf != 0 for culprit in culprits if culprit.inf is not None)
    nan = any(culprit.nan != 0 for culprit in culprits if culprit.nan is not None)
    return "inf+nan" if inf and nan else "inf" if inf else "nan" if nan else "unknown"


def _at_least_one(given: object) -> int:
    """A count from an event's free-form detail, which may hold anything."""
    return min(given, 2**31) if isinstance(given, int) and given > 0 else 1
