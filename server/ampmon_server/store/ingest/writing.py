"""Writes the new records of a batch and updates the counts and aggregates of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ampmon import wire
from ampmon_server.store.engine.engine import insert_rows
from ampmon_server.store.engine.errors import BadBatch
from ampmon_server.store.pages.pages import edge_of
from ampmon_server.store.samples import gradient_rollups, gradients, parameter_rollups
from ampmon_server.store.samples.gradient_rollups import Change, Edges
from ampmon_server.store.schema.tables import events, module_blocks
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.batch import StreamBatch
from ampmon_server.store.streams.roster import Roster
from ampmon_server.store.streams.rows import RowMaker
from ampmon_server.store.streams.state import RunState
from ampmon_server.store.updates import resumes, scalars
from ampmon_server.store.updates.run_totals import Tally
from ampmon_server.store.updates.scalars import LoggedSeries


MEASURING = "measurable", "measured"
"""Events of a scaler after which a user may request a measurement."""
GAP_MAX = 2**12
"""The most steps between neighbouring updates that are processed together. Across a wider gap, cells are recomputed on
each side separately, so the rows of other ranks and attempts in the gap are not read."""


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes the records of one attempt within the connection's transaction."""

    connection: Connection
    state: RunState
    roster: Roster
    attempt: Attempt

    def write(self, share: StreamBatch, held: int) -> None:
        """Store new records of one stream. Raises BadBatch for an invalid record.

        ``held`` is the last seq of the stream stored before, -1 for none.
        """
        rows = RowMaker(self.state.run_id, self.roster.mine(share.name), self.attempt)
        placed: dict[type, list[tuple[int, Any]]] = {
            kind: [] for kind in (wire.Update, wire.Event, wire.Scalars)
        }
        for place, record in zip(share.places, share.records, strict=True):
            placed[type(record)].append((place, record))
        for near in _near(placed[wire.Update]):
            self._updates(rows, near, share, held)
        self._events(rows, placed[wire.Event])
        self._scalars(rows, placed[wire.Scalars], placed[wire.Update])
        self.state.records += len(share.records)

    def _updates(
        self,
        rows: RowMaker,
        placed: Sequence[tuple[int, wire.Update]],
        share: StreamBatch,
        held: int,
    ) -> None:
        last_place, newest = placed[-1]
        rows.step(newest.ordinal, last_place)  # raises for a step that is too large; ordinals rise
        new = rows.updates([update for _, update in placed])
        tally = Tally(self.connection, self.state, self.roster)
        skipped = [
            row
            for (place, update), is_skipped in zip(placed, new["skipped"].tolist(), strict=True)
            if is_skipped
            for row in rows.skips(update, place, share.activations.get(place))
        ]
        stream = rows.stream
        first, last = int(new["step"][0]), int(new["step"][-1])
        redone, begins = not stream.is_before(first), not stream.sampled
        edges = Edges(self.roster.scaler(stream.scaler).edge, edge_of(stream.last_step))
        if resumes.is_first(self.attempt, placed[0][1]):
            self.state.forgotten += resumes.note(self.connection, rows, placed[0][1])
        tally.note(rows.stream, self.attempt, [update for _, update in placed], held)
        tally.store(stream, new, skipped)
        samples = [
            rows.sample(update, share.statistics[place], place)
            for place, update in placed
            if update.gradients is not None
        ]
        if samples:
            seq = max(update.seq for _, update in placed if update.gradients is not None)
            of = self.connection, self.state, self.attempt, stream
            is_newest = gradients.write(*of, samples, late=seq < held)
            if is_newest and tally.is_present(stream, self.attempt):
                gradients.summarize(*of, self.roster)
        change = Change(first, last, edges, redone, bool(samples), bool(samples) and begins)
        gradient_rollups.note(self.connection, self.roster, stream, self.attempt, change)
        parameter_rollups.note(self.connection, self.roster, stream, self.attempt.number, change)
        passed = [
            rows.modules(update, share.activations[place], place)
            for place, update in placed
            if update.activations is not None
        ]
        gradients.write_blocks(
            self.connection, module_blocks, self.state, self.attempt, rows.stream, passed
        )

    def _scalars(
        self,
        rows: RowMaker,
        placed: Sequence[tuple[int, wire.Scalars]],
        updates: Sequence[tuple[int, wire.Update]],
    ) -> None:
        stream, overlaid = rows.stream, self.state.attempts > 1
        of = LoggedSeries(self.state.run_id, stream.number, stream.rows_from, overlaid)
        logged = rows.scalars(placed)
        if logged:
            _check_room(placed, scalars.too_many(self.connection, of, logged, self.roster.tails))
            scalars.write(self.connection, of, logged, self.roster.tails)
        for near in _near(updates) if self.attempt.number else ():
            first, last = (near[end][1].ordinal + self.attempt.origin for end in (0, -1))
            scalars.supersede(self.connection, of, self.attempt.number, (first, last))

    def _events(self, rows: RowMaker, placed: Sequence[tuple[int, wire.Event]]) -> None:
        insert_rows(self.connection, events, [rows.event(event, place) for place, event in placed])
        for _, event in placed:
            if event.kind == "error":
                self.state.errors += _at_least_one(event.detail.get("repeat"))
            elif event.kind == "dropped":
                self.state.dropped += _at_least_one(event.detail.get("count"))
            elif event.kind == "thinned":
                self.state.thinned += _at_least_one(event.detail.get("count"))
            elif event.kind == "disabled" and self.roster.first_scaler is None:
                self.state.disabled = 1
            elif event.kind in MEASURING and event.stream:
                self.state.measurement = 0


def _check_room(placed: Sequence[tuple[int, wire.Scalars]], beyond: set[str]) -> None:
    for place, record in placed:
        if beyond & record.values.keys():
            most = wire.SCALAR_NAMES_MAX
            reason = f"with its new names the run would have more than {most} logged values"
            raise BadBatch(f"records[{place}].values", reason)


def _near(
    placed: Sequence[tuple[int, wire.Update]],
) -> Iterator[Sequence[tuple[int, wire.Update]]]:
    """Split updates, in order of ordinal, at gaps of more than `GAP_MAX` steps."""
    first = 0
    for place, (_, update) in enumerate(placed[1:], 1):
        if update.ordinal - placed[place - 1][1].ordinal > GAP_MAX:
            yield placed[first:place]
            first = place
    if placed:
        yield placed[first:]


def _at_least_one(given: object) -> int:
    """A count from an event's free-form detail, which may hold anything."""
    return min(given, 2**31) if isinstance(given, int) and given > 0 else 1
