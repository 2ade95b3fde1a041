"""Writes the new records of a batch, and maintains the counts, aggregates and current values of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import median
from typing import Any

from sqlalchemy import Connection

from ampmon import wire
from ampmon_server.model.aggregates.updates import Counts, Rows, count_rows
from ampmon_server.store.engine.errors import BadBatch
from ampmon_server.store.engine.numbers import split, split_pair
from ampmon_server.store.engine.rows import Key, insert_rows
from ampmon_server.store.ingest.plan import Row, RowMaker, StreamBatch
from ampmon_server.store.ingest.roster import Roster
from ampmon_server.store.samples import gradients, parameter_rollups, samples, totals
from ampmon_server.store.samples.samples import Change
from ampmon_server.store.schema.tables import events, moves, skips
from ampmon_server.store.streams.attempts import Attempt, world_sizes
from ampmon_server.store.streams.scalers import Scaler, StreamSource, shards
from ampmon_server.store.streams.state import RunState
from ampmon_server.store.updates import scalars, updates
from ampmon_server.store.updates.events import RESUME, resume_of
from ampmon_server.store.updates.updates import PAGES, agreed, read_rows


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
        rows = RowMaker(self.roster.mine(share.name), self.attempt)
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
        skipped = [
            row
            for place, update in compress(placed, new["skipped"].tolist())
            for row in rows.skips(update, place, share.activations.get(place))
        ]
        stream, first, last = rows.stream, int(new["step"][0]), int(new["step"][-1])
        # Read here what the stream was before this batch: `_store` changes it in place.
        redone, begins = not stream.is_before(first), not stream.sampled
        stream_edge, before = stream.edge, self.roster.scaler(stream.scaler)
        self._resume(rows, placed[0][1])
        # Before `_store`: it asks which steps any rank had reported without these rows.
        self._summarize(stream, [update for _, update in placed], before, held)
        self._store(stream, new, skipped, before)
        after = self.roster.scaler(stream.scaler)
        parts = self._samples(rows, placed, share, after, held)
        edges = before.edge, stream_edge
        change = Change(first, last, *edges, redone, parts, bool(parts) and begins)
        samples.note(self.connection, after, stream, change)
        parameter_rollups.note(self.connection, after, stream.number, change)
        passed = [
            rows.modules(update, share.activations[place], place)
            for place, update in placed
            if update.activations is not None
        ]
        gradients.write_modules(self.connection, self.attempt, stream, passed)

    def _samples(
        self,
        rows: RowMaker,
        placed: Sequence[tuple[int, wire.Update]],
        share: StreamBatch,
        scaler: Scaler,
        held: int,
    ) -> Sequence[StreamSource]:
        """Store the sampled gradients. Return the streams whose samples count; none if nothing was sampled."""
        taken = [each for each in placed if each[1].gradients is not None]
        if not taken:
            return ()
        stream = rows.stream
        made = [rows.sample(update, share.statistics[place], place) for place, update in taken]
        written = gradients.write(self.connection, self.attempt, stream, made)
        parts = scaler.sampled[: shards(self.connection, scaler)[self.attempt.number]]
        step = made[-1].step
        following = self.connection, [stream], step + 1
        is_late = taken[-1][1].seq < held and samples.next_step(*following) is not None
        if self._is_present(stream) and not is_late:
            if stream.header.is_sharded:
                # While ranks start, each would read the samples of those before it.
                run, start = (self.connection, self.state.run_id), self.attempt.number
                if stream.sampled > len(taken) or len(parts) >= world_sizes(*run)[start]:
                    gradients.summarize(self.state, samples.together(self.connection, parts, step))
            elif self._is_lowest(scaler, stream, samples=1):
                gradients.summarize(self.state, totals.series(written[-1:]))
        return parts

    def _resume(self, rows: RowMaker, first: wire.Update) -> None:
        """At an attempt's first update, store how its scaler began, and count a resume that forgot the scale.

        That is the last scale of the same scaler. Scalers resume from the furthest step of any, so this one may have
        done fewer steps. The comparison uses the records stored now; records that arrive later do not change it.
        """
        if not self.attempt.number or first.ordinal:
            return
        before = self._scale_before(rows)
        detail = {"restored": not first.fresh, "scale_before": before, "scale": first.scale}
        event = wire.Event(
            stream=first.stream,
            seq=first.seq,
            time=first.time,
            kind=RESUME,
            ordinal=first.ordinal,
            detail=detail,
        )
        insert_rows(self.connection, events, [rows.event(event, 0)])
        self.state.forgotten += resume_of(0, first.time, detail).lost is not None

    def _scale_before(self, rows: RowMaker) -> float | None:
        """The scale that the step before an attempt left; None if there is none or it is not finite."""
        key, before = rows.stream.key, self.attempt.origin
        while (first := PAGES.preceding(self.connection, key, before)) is not None:
            # A page may hold rows of this attempt only: look further back.
            before = first
            found = PAGES.read(self.connection, key, before, self.attempt.origin - 1)
            found = found[found["attempt"] < self.attempt.number]
            if len(found):
                return split(float(found["scale_after"][-1]))[0]
        return None

    def _store(
        self, stream: StreamSource, rows: Rows, skipped: Sequence[Row], before: Scaler
    ) -> None:
        """Store and count new updates, given in order of step, and rows of `tables.skips`."""
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        if self._stood_for(stream, rows, before):
            self._put(stream, rows, skipped)
        else:
            newest = all(each.is_before(first) for each in before.sources)
            # Past every rank's last step no row is stored, so the usual batch reads none.
            held = Counts() if newest else self._counted(before, first, last)
            tail = PAGES.tail(self.connection, stream.key, self.roster.tails)
            self._put(stream, rows, skipped)
            after = self.roster.scaler(stream.scaler)
            kept = rows[rows["step"] >= after.rows_from]
            counts = count_rows(kept) if newest else self._counted(after, first, last)
            # The difference, because other ranks and attempts may have some of these steps already.
            self.state.count(counts.minus(held))
            known = (tail.rows, rows) if newest and len(after.sources) == 1 else ()
            updates.series(self.connection, after, known).refresh(first, last, before.edge)
        self.roster.save(stream)
        self.state.last_step = max(self.state.last_step or 0, last)

    def _put(self, stream: StreamSource, rows: Rows, skipped: Sequence[Row]) -> None:
        key = stream.key
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        # Pruned steps have only cells, which no late row can join: the rows beside it are gone.
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

    def _stood_for(self, stream: StreamSource, rows: Rows, before: Scaler) -> bool:
        """Whether these rows change no cell: a lower rank has all of their steps and samples, and they add no skip.

        A repeated step may undo a skip, so all steps must be new to the stream.
        """
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        if not stream.is_before(first) or rows["skipped"].any():
            return False
        lower = (each for each in before.sources if each.rank < stream.rank)
        whole = (each for each in lower if each.has_all(first, last))
        taken = rows["step"][rows["sampled"] == 1]
        # Sharded ranks sample the same steps, so the lower rank's row says so already.
        if stream.header.is_sharded or not len(taken):
            return any(True for _ in whole)
        sampling = next((each for each in whole if each.sampled), None)
        if sampling is None:
            return False
        held = updates.read_at(self.connection, sampling, taken)
        return int(held["sampled"].sum()) == len(taken)

    def _summarize(
        self, stream: StreamSource, new: Sequence[wire.Update], before: Scaler, held: int
    ) -> None:
        """Update the summary from new updates: the monitor's cost, sampling interval, schedule, and current scale.

        Of the schedule only steps that no rank has reported ``before`` count. ``held`` is the last seq stored before:
        updates that fill a gap do not set the current values.
        """
        scheduled = {self.attempt.origin + update.ordinal for update in new if update.scheduled}
        if scheduled:
            self.state.scheduled += len(scheduled - self._known(before, scheduled))
        timed = [update for update in new if update.duration is not None]
        if timed:
            durations = [update.duration or 0.0 for update in timed]
            self.state.duration_us += sum(durations)
            self.state.cost_us += sum(update.cost for update in timed)
            self.state.typical_update(median(durations), len(durations))
        if new[-1].seq > held and self._is_present(stream):
            if self._is_lowest(before, stream):
                self.state.scale, self.state.scale_kind = split(new[-1].scale_after)
            with_interval = [update for update in new if update.interval is not None]
            if with_interval and self._is_lowest(before, stream, samples=1):
                self.state.sampling_interval = with_interval[-1].interval
                self.state.over_budget = int(with_interval[-1].over_budget)

    def _known(self, scaler: Scaler, steps: set[int]) -> set[int]:
        """Those of ``steps`` that any rank has reported in any attempt, or whose rows are pruned."""
        rows = read_rows(self.connection, scaler, start=min(steps), stop=max(steps) + 1)
        held = steps.intersection(rows["step"].tolist())
        return held.union(step for step in steps if step < scaler.rows_from)

    def _is_present(self, stream: StreamSource) -> bool:
        """Whether this is the newest attempt of the first scaler: only its values are the current ones."""
        first = self.roster.first
        return self.attempt.newest and first is not None and stream.scaler == first.scaler

    def _is_lowest(self, scaler: Scaler, stream: StreamSource, samples: int = 0) -> bool:
        """Whether no lower rank has the scaler in this attempt or later, with ``samples`` samples at least."""
        lower = (each for each in scaler.sources if each.rank < stream.rank)
        present = (each for each in lower if each.newest_attempt >= self.attempt.number)
        return all(each.sampled < samples for each in present)

    def _scalars(
        self,
        rows: RowMaker,
        placed: Sequence[tuple[int, wire.Scalars]],
        updates: Sequence[tuple[int, wire.Update]],
    ) -> None:
        # Nothing is superseded in a run's first start, which saves the look into the ledger.
        of = replace(rows.stream, overlaid=self.state.attempts > 1)
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
            elif event.kind == "disabled" and self.roster.first is None:
                self.state.disabled = 1
            elif event.kind in MEASURING and event.stream:
                self.state.measurement = 0


def _moves(key: Key, rows: Rows) -> Iterator[Row]:
    """Make the rows of `tables.moves`."""
    for row in rows[(rows["event"] > 0) | (rows["skipped"] > 0)]:
        at = [int(row[name]) for name in ("step", "attempt", "time", "event", "skipped")]
        yield (*key, *at, *split_pair(float(row["scale"]), float(row["scale_after"])))


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
    # Limited, so that no client can make the run's sum too large for its column.
    return min(given, 2**31) if isinstance(given, int) and given > 0 else 1
