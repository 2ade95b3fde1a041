"""Stores updates, and maintains the totals and the current values in the run's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import Connection, bindparam, select

from ampmon import wire
from ampmon_server.model.aggregates.updates import Counts, Rows, count_rows
from ampmon_server.store.engine.engine import fetch, insert_rows
from ampmon_server.store.engine.numbers import split, split_pair
from ampmon_server.store.pages.pyramid import Key
from ampmon_server.store.schema.tables import headers, moves, skips, streams
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.roster import Roster
from ampmon_server.store.streams.rows import Row
from ampmon_server.store.streams.scalers import Scaler
from ampmon_server.store.streams.state import RunState
from ampmon_server.store.streams.streams import IngestStream
from ampmon_server.store.updates import rollups
from ampmon_server.store.updates.updates import PAGES, agreed, read_rows


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
"""Selects a lower rank that has the scaler in this attempt or a later one, and at least ``samples`` samples."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The totals of one run within a transaction."""

    connection: Connection
    state: RunState
    roster: Roster

    def store(self, stream: IngestStream, rows: Rows, skipped: Sequence[Row]) -> None:
        """Store and count new updates, given in order of step, and rows of `tables.skips`."""
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        if self._stood_for(stream, rows):
            self._put(stream, rows, skipped)
        else:
            before = self.roster.scaler(stream.scaler)
            newest = all(each.is_before(first) for each in before.sources)
            held = Counts() if newest else self._counted(before, first, last)
            self._put(stream, rows, skipped)
            after = self.roster.scaler(stream.scaler)
            kept = rows[rows["step"] >= after.rows_from]
            counts = count_rows(kept) if newest else self._counted(after, first, last)
            self.state.count(counts.minus(held))
            rollups.series(self.connection, after).refresh(first, last, before.edge)
        self.roster.save(stream)
        self.state.last_step = max(self.state.last_step or 0, last)

    def _put(self, stream: IngestStream, rows: Rows, skipped: Sequence[Row]) -> None:
        key = (self.state.run_id, stream.number)
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        held = rows[rows["step"] >= stream.rows_from]
        new = PAGES.put(self.connection, {key: held}, self.roster.tails) if len(held) else 0
        stream.count(new, int(rows["sampled"].sum()), first, last)
        insert_rows(self.connection, moves, list(_moves(key, rows)))
        insert_rows(self.connection, skips, skipped)

    def _counted(self, scaler: Scaler, first: int, last: int) -> Counts:
        """Count the distinct steps of a scaler from ``first`` to ``last`` whose rows are held."""
        first = max(first, scaler.rows_from)
        if last < first:
            return Counts()
        rows = read_rows(self.connection, scaler, start=first, stop=last + 1)
        return count_rows(agreed(self.connection, scaler, rows))

    def _stood_for(self, stream: IngestStream, rows: Rows) -> bool:
        """Whether these rows change no cell: a lower rank has all of their steps, and they add no skip and no sample.

        A repeated step may undo a skip, so all steps must be new to the stream.
        """
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        if not stream.is_before(first) or rows["skipped"].any():
            return False
        if rows["sampled"].any() and stream.layout != "sharded":
            return False
        return self.roster.stood_for(stream, first, last)

    def note(
        self, stream: IngestStream, attempt: Attempt, new: Sequence[wire.Update], held: int
    ) -> None:
        """Update the summary from new updates: the monitor's cost, sampling interval, schedule, and current scale.

        Call it before they are stored: of the schedule only steps that no rank has reported yet count. ``held`` is the
        last seq stored before: updates that fill a gap do not set the current values.
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
            with_interval = [update for update in new if update.interval is not None]
            if with_interval and self._is_lowest(stream, attempt, samples=1):
                self.state.sampling_interval = with_interval[-1].interval
                self.state.over_budget = int(with_interval[-1].over_budget)

    def _known(self, stream: IngestStream, steps: set[int]) -> set[int]:
        """Those of ``steps`` that any rank has reported in any attempt, or whose rows are pruned."""
        scaler = self.roster.scaler(stream.scaler)
        rows = read_rows(self.connection, scaler, start=min(steps), stop=max(steps) + 1)
        held = steps.intersection(rows["step"].tolist())
        return held.union(step for step in steps if step < scaler.rows_from)

    def is_present(self, stream: IngestStream, attempt: Attempt) -> bool:
        """Whether this is the newest attempt of the first scaler: only its values are the current ones."""
        return attempt.newest and stream.scaler == self.roster.first_scaler

    def _is_lowest(self, stream: IngestStream, attempt: Attempt, samples: int = 0) -> bool:
        """Whether no lower rank has the scaler in this attempt or later, with ``samples`` samples at least."""
        of = {"of": self.state.run_id, "name": stream.scaler, "by": stream.rank}
        of |= {"attempt": attempt.number, "samples": samples}
        return stream.rank == 0 or not fetch(self.connection, _BELOW, of)


def _moves(key: Key, rows: Rows) -> Iterator[Row]:
    """Make the rows of `tables.moves`."""
    for row in rows[(rows["event"] > 0) | (rows["skipped"] > 0)]:
        at = [int(row[name]) for name in ("step", "attempt", "time", "event", "skipped")]
        yield (*key, *at, *split_pair(float(row["scale"]), float(row["scale_after"])))
