"""Keeps the totals of a run and its streams, and what its summary says of the present, as new updates come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import Connection, select

from ampmon import wire
from ampmon_server.store.attempts import Attempt
from ampmon_server.store.counts import Counts, Mark, change
from ampmon_server.store.numbers import split
from ampmon_server.store.rows import ATTEMPT, SAMPLED, SKIPPED, STEP, Row
from ampmon_server.store.state import RunState
from ampmon_server.store.streams import Roster, Stream
from ampmon_server.tables import updates


@dataclass(frozen=True, slots=True)
class Tally:
    """The totals of one run within a transaction."""

    connection: Connection
    state: RunState
    roster: Roster

    def count(self, stream: Stream, rows: Sequence[Row]) -> None:
        """Count rows of `tables.updates`, in order of step, that are about to be inserted."""
        first, last = rows[0][STEP], rows[-1][STEP]
        siblings = self.roster.siblings(stream.scaler)
        done = max((each.last_step for each in siblings if each.last_step is not None), default=-1)
        stored = self._stored(siblings, first, last) if first <= done else []
        if stored:
            marks = [
                Mark(stream.number, row[STEP], row[ATTEMPT], row[SKIPPED], row[SAMPLED])
                for row in rows
            ]
            total = change(stored, marks)
            own = change([mark for mark in stored if mark.stream == stream.number], marks)
        else:  # nobody has done these steps: no step can be counted twice
            own = total = Counts(
                len(rows), sum(row[SKIPPED] for row in rows), sum(row[SAMPLED] for row in rows)
            )
        self.state.count(total)
        stream.count(own, first, last)
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

    def note(self, stream: Stream, attempt: Attempt, new: Sequence[wire.Update]) -> None:
        """Note what new updates say of the monitor's cost, how often it samples, and of the scale now."""
        timed = [update for update in new if update.duration is not None]
        if timed:
            durations = [update.duration or 0.0 for update in timed]
            self.state.duration_us += sum(durations)
            self.state.cost_us += sum(update.cost for update in timed)
            self.state.typical_update(median(durations), len(durations))
        if self.is_present(stream, attempt):
            self.state.scale, self.state.scale_kind = split(new[-1].scale_after)
            told = [update for update in new if update.interval is not None]
            if told:
                self.state.sampling_interval = told[-1].interval
                self.state.over_budget = int(told[-1].over_budget)

    def is_present(self, stream: Stream, attempt: Attempt) -> bool:
        """Whether the summary's present is that of this stream: its first scaler's, and no attempt's that is over."""
        return attempt.newest and stream.scaler == self.roster.first_scaler
