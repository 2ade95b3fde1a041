"""Stores updates, and keeps what is counted of them and what the run's summary says of the present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from sqlalchemy import Connection, bindparam, select

from ampmon import wire
from ampmon_server.cells.merging import Cells
from ampmon_server.store import rollups
from ampmon_server.store.attempts import Attempt
from ampmon_server.store.engine import fetch, insert_rows
from ampmon_server.store.numbers import split
from ampmon_server.store.roster import Roster
from ampmon_server.store.rows import SAMPLED, SKIPPED, STEP, Row
from ampmon_server.store.state import RunState
from ampmon_server.store.streams import Stream
from ampmon_server.store.updates import ROWS, cells_of
from ampmon_server.tables import headers, skips, streams, updates


_PLACES = {name: place for place, name in enumerate(updates.c.keys())}
_CELL = [
    (name, _PLACES[name], -1 if name in {"duration_ns", "memory_peak"} else 0)
    for name in ROWS.names or ()
]
"""Where in a row of `tables.updates` that stands which `ROWS` has, and what it is there for null."""

_BELOW = (
    select(streams.c.stream)
    .join(headers, (headers.c.run_id == streams.c.run_id) & (headers.c.stream == streams.c.stream))
    .where(
        streams.c.run_id == bindparam("of"),
        streams.c.scaler == bindparam("name"),
        streams.c.rank < bindparam("by"),
        streams.c.sampled >= bindparam("samples"),
        headers.c.attempt >= bindparam("attempt"),
    )
    .limit(1)
)
"""A lower rank that has the scaler in a start as new, and so many samples at least."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The totals of one run within a transaction."""

    connection: Connection
    state: RunState
    roster: Roster

    def store(self, stream: Stream, rows: Sequence[Row], skipped: Sequence[Row]) -> None:
        """Insert rows of `tables.updates`, in order of step, and those of `tables.skips`, and count them."""
        first, last = rows[0][STEP], rows[-1][STEP]
        before = None if self._stood_for(stream, rows) else self.roster.scaler(stream.scaler)
        stream.count(self._unheard(stream, rows), sum(row[SAMPLED] for row in rows), first, last)
        insert_rows(self.connection, updates, rows)
        insert_rows(self.connection, skips, skipped)
        if before is not None:
            ends = [each.last_step for each in before.sources if each.last_step is not None]
            newest = first > max(ends, default=-1)
            scaler = before if newest else self.roster.scaler(stream.scaler)
            new = _cells(rows) if newest else None
            self.state.count(rollups.refresh(self.connection, scaler, first, last, new))
        self.roster.save(stream)
        self.state.last_step = max(self.state.last_step or 0, last)

    def _stood_for(self, stream: Stream, rows: Sequence[Row]) -> bool:
        """Whether these rows change no cell: a lower rank has all of their steps, and they add no skip and no sample.

        A step done again may take a skip back, so only steps that are new to the stream can be.
        """
        first, last = rows[0][STEP], rows[-1][STEP]
        if not stream.is_before(first) or any(row[SKIPPED] for row in rows):
            return False
        if any(row[SAMPLED] for row in rows) and stream.layout != "sharded":
            return False
        return self.roster.stood_for(stream, first, last)

    def _unheard(self, stream: Stream, rows: Sequence[Row]) -> int:
        """How many of the steps are new to the stream; of those whose rows are pruned, none."""
        first, last = max(rows[0][STEP], stream.rows_from), rows[-1][STEP]
        if stream.is_before(first):
            return len(rows)
        table = updates.c
        held = self.connection.scalars(
            select(table.step)
            .distinct()
            .where(
                table.run_id == self.state.run_id,
                table.stream == stream.number,
                table.step.between(first, last),
            )
        )
        return len({row[STEP] for row in rows if row[STEP] >= first}.difference(held))

    def note(self, stream: Stream, attempt: Attempt, new: Sequence[wire.Update], held: int) -> None:
        """Note what updates say of the monitor's cost, how often it samples, of the schedule, and the scale now.

        Before they are stored: of the schedule only that counts which nobody has told of yet. ``held`` is the last seq
        of theirs that was held before: what fills a gap is not the present.
        """
        scheduled = {attempt.origin + update.ordinal for update in new if update.scheduled}
        if scheduled:
            self.state.scheduled += len(scheduled - self._known(stream, scheduled))
        timed = [update for update in new if update.duration is not None]
        if timed:
            durations = [update.duration or 0.0 for update in timed]
            self.state.duration_us += sum(durations)
            self.state.cost_us += sum(update.cost for update in timed)
            self.state.typical_update(median(durations), len(durations))
        if new[-1].seq > held and self.is_present(stream, attempt):
            if self._is_lowest(stream, attempt):
                self.state.scale, self.state.scale_kind = split(new[-1].scale_after)
            told = [update for update in new if update.interval is not None]
            if told and self._is_lowest(stream, attempt, samples=1):
                self.state.sampling_interval = told[-1].interval
                self.state.over_budget = int(told[-1].over_budget)

    def _known(self, stream: Stream, steps: set[int]) -> set[int]:
        """Those of some steps that any rank has told of, in any attempt, or whose rows are pruned."""
        scaler = self.roster.scaler(stream.scaler)
        table = updates.c
        held = self.connection.scalars(
            select(table.step).where(
                table.run_id == self.state.run_id,
                table.stream.in_([source.number for source in scaler.sources]),
                table.step.between(min(steps), max(steps)),
            )
        )
        return {*held, *(step for step in steps if step < scaler.rows_from)}

    def is_present(self, stream: Stream, attempt: Attempt) -> bool:
        """Whether the summary's present is that of this stream: its first scaler's, and no attempt's that is over."""
        return attempt.newest and stream.scaler == self.roster.first_scaler

    def _is_lowest(self, stream: Stream, attempt: Attempt, samples: int = 0) -> bool:
        """Whether the present is this stream's to tell: of ranks, which arrive apart, the lowest that started so."""
        of = {"of": self.state.run_id, "name": stream.scaler, "by": stream.rank}
        of |= {"attempt": attempt.number, "samples": samples}
        return stream.rank == 0 or not fetch(self.connection, _BELOW, of)


def _cells(rows: Sequence[Row]) -> Cells:
    """Rows of `tables.updates` as cells of one."""
    told = np.zeros(len(rows), ROWS)
    columns = list(zip(*rows, strict=True))
    for name, place, unknown in _CELL:
        column = columns[place]
        told[name] = (
            [unknown if each is None else each for each in column] if None in column else column
        )
    return cells_of(told)
