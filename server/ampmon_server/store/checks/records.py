"""Holds the ledger to the rows it speaks of, and what is counted of a run to what is counted of its parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import Connection, Row, Table, func, select

from ampmon_server.cells.updates import Counts
from ampmon_server.store import ranges, resumes, rollups
from ampmon_server.store.checks.finding import REPAIR, RESTORE, Finding
from ampmon_server.store.errors import Damaged
from ampmon_server.store.pages import last_of_each_step
from ampmon_server.store.ranges import Range
from ampmon_server.store.scalers import scalers_of
from ampmon_server.store.updates import PAGES
from ampmon_server.tables import events, ledger, runs, scalars, streams, update_pages


Place = tuple[int, int]
"""Stream and attempt."""


def pages(connection: Connection, run_id: bytes) -> dict[Place, list[Range]]:
    """The ledger of a run: the ranges of seq that are held, in order."""
    table = ledger.c
    found = defaultdict(list)
    for stream, attempt, first, last in connection.execute(
        select(table.stream, table.attempt, table.first_seq, table.last_seq)
        .where(table.run_id == run_id)
        .order_by(table.stream, table.attempt, table.first_seq)
    ):
        found[stream, attempt].append((first, last))
    return dict(found)


def contiguity(connection: Connection, run_id: bytes, where: str) -> Iterator[Finding]:
    """That each range of the ledger stands apart, and has the rows that it says."""
    held = pages(connection, run_id)
    for (stream, attempt), found in held.items():
        if found != ranges.merge(found) or any(last < first for first, last in found):
            place = f"{where}, stream {stream}, attempt {attempt}"
            yield Finding(place, "ranges of its ledger touch or overlap", RESTORE)
    yield from _events(connection, run_id, held, where)
    spans, unknown = _spans(connection, run_id)
    unknown |= _pruned(connection, run_id)
    yield from _rows(connection, run_id, held, spans, unknown, where)
    yield from _steps(connection, run_id, spans, unknown, where)


class Span(NamedTuple):
    """How many updates, and the steps of the first and the last."""

    updates: int
    first: int
    last: int


def _spans(connection: Connection, run_id: bytes) -> tuple[dict[Place, Span], set[int]]:
    """What is held of updates by stream and attempt, and the streams of which a page is damaged."""
    found: dict[Place, Span] = {}
    damaged = set()
    for stream in _streams(connection, run_id):
        try:
            for rows in PAGES.walk(connection, (run_id, stream)):
                for attempt in np.unique(rows["attempt"]).tolist():
                    steps = rows["step"][rows["attempt"] == attempt]
                    before = found.get((stream, attempt), Span(0, int(steps[0]), 0))
                    found[stream, attempt] = Span(
                        before.updates + len(steps), before.first, int(steps[-1])
                    )
        except Damaged:  # `checks.pages` says where
            damaged.add(stream)
    return found, damaged


def _streams(connection: Connection, run_id: bytes) -> list[int]:
    """Every stream that has updates, itself held or not."""
    table = update_pages.c
    return list(connection.scalars(select(table.stream).distinct().where(table.run_id == run_id)))


def _events(
    connection: Connection, run_id: bytes, held: Mapping[Place, Sequence[Range]], where: str
) -> Iterator[Finding]:
    table = events.c
    seqs = defaultdict(list)
    for stream, attempt, seq in connection.execute(
        select(table.stream, table.attempt, table.seq)
        .where(table.run_id == run_id)
        .order_by(table.stream, table.attempt, table.seq)
    ):
        seqs[stream, attempt].append(seq)
    for (stream, attempt), numbers in seqs.items():
        unknown = ranges.absent(numbers, held.get((stream, attempt), []))
        if unknown:
            place = f"{where}, stream {stream}, attempt {attempt}, seq {numbers[unknown[0]]}"
            yield Finding(place, f"{len(unknown)} events are not in the ledger", RESTORE)


def _rows(
    connection: Connection,
    run_id: bytes,
    held: Mapping[Place, Sequence[Range]],
    spans: Mapping[Place, Span],
    unknown: Collection[int],
    where: str,
) -> Iterator[Finding]:
    """A record of scalars may be several rows or none, so where there are such only an excess shows."""
    of_events = _counts(connection, events, run_id)
    of_scalars = _counts(connection, scalars, run_id)
    for place in sorted(held.keys() | spans.keys()):
        recorded = ranges.size(held.get(place, []))
        updates = spans[place].updates if place in spans else 0
        rows = updates + of_events.get(place, 0) + of_scalars.get(place, 0)
        complete = place[0] not in unknown and place not in of_scalars
        if rows > recorded or (rows < recorded and complete):
            yield Finding(
                f"{where}, stream {place[0]}, attempt {place[1]}",
                f"its ledger has {recorded} records, and {rows} are held",
                RESTORE,
            )


def _steps(
    connection: Connection,
    run_id: bytes,
    spans: Mapping[Place, Span],
    unknown: Collection[int],
    where: str,
) -> Iterator[Finding]:
    """That the ledger says of which step the first and the last update is, of streams whose rows are all held."""
    table = ledger.c
    told = {
        (stream, attempt): (first, last)
        for stream, attempt, first, last in connection.execute(
            select(
                table.stream, table.attempt, func.min(table.first_step), func.max(table.last_step)
            )
            .where(table.run_id == run_id, table.last_step.is_not(None))
            .group_by(table.stream, table.attempt)
        )
    }
    rows = {place: (span.first, span.last) for place, span in spans.items()}
    for place in sorted(told.keys() | rows.keys()):
        if place[0] not in unknown and told.get(place) != rows.get(place):
            yield Finding(
                f"{where}, stream {place[0]}, attempt {place[1]}",
                f"its ledger says steps {told.get(place)} where its updates have {rows.get(place)}",
                RESTORE,
            )


def _counts(connection: Connection, table: Table, run_id: bytes) -> dict[Place, int]:
    """Rows by stream and attempt; of scalars the steps that have any."""
    of = table.c
    counted = func.count(of.step.distinct()) if table is scalars else func.count()
    recorded = select(of.stream, of.attempt, counted).where(of.run_id == run_id)
    if table is events:
        recorded = recorded.where(of.kind != resumes.KIND)  # the server's own
    rows = connection.execute(recorded.group_by(of.stream, of.attempt))
    return {(stream, attempt): count for stream, attempt, count in rows}


def _pruned(connection: Connection, run_id: bytes) -> set[int]:
    table = streams.c
    gone = select(table.stream).where(table.run_id == run_id, table.rows_from > 0)
    return set(connection.scalars(gone))


def totals(connection: Connection, run: Row[Any], where: str) -> Iterator[Finding]:
    """That what the run's row counts is what its ledger and its cells count, and its streams what their rows do."""
    for name, (held, expected) in expected_totals(connection, run).items():
        if held != expected:
            what = f"says {held} {name} where its parts have {expected}"
            yield Finding(where, what, REPAIR)
    for stream, told, counted in stream_counts(connection, run.run_id):
        if told != counted:
            place = f"{where}, stream {stream}"
            what = f"says {told} updates, samples, first and last step where its rows say {counted}"
            yield Finding(place, what, REPAIR)


def expected_totals(connection: Connection, run: Row[Any]) -> dict[str, tuple[int, int]]:
    """By column of `runs`, what it holds and what it should."""
    held = pages(connection, run.run_id).values()
    found = {
        "records": (run.records, sum(map(ranges.size, held))),
        "lost": (run.lost, sum(map(ranges.missing, held))),
    }
    try:
        counts = Counts()
        for scaler in scalers_of(connection, run.run_id):
            if scaler.sources:
                counts = counts.plus(rollups.totals(connection, scaler))
    except Damaged:
        return found  # which is a finding of its own
    for name, count in counts._asdict().items():
        found[name] = (getattr(run, name), count)
    return found


Counted = tuple[int, int, int | None, int | None]
"""Distinct steps, samples, the first and the last step."""


def stream_counts(connection: Connection, run_id: bytes) -> Iterator[tuple[int, Counted, Counted]]:
    """Stream, what it says and what its rows say, for those whose rows are all held and can be read."""
    table = streams.c
    told = connection.execute(
        select(table.stream, table.updates, table.sampled, table.first_step, table.last_step)
        .where(table.run_id == run_id, table.rows_from == 0)
        .order_by(table.stream)
    ).all()
    for stream, *says in told:
        with suppress(Damaged):  # `checks.pages` says where
            counted = _counted(connection, run_id, stream)
            yield stream, (says[0], says[1], says[2], says[3]), counted


def _counted(connection: Connection, run_id: bytes, stream: int) -> Counted:
    distinct = sampled = 0
    first = last = None
    for rows in PAGES.walk(connection, (run_id, stream)):
        distinct += len(last_of_each_step(rows))
        sampled += int(rows["sampled"].sum())
        first = int(rows["step"][0]) if first is None else first
        last = int(rows["step"][-1])
    return distinct, sampled, first, last


def mend(connection: Connection, run: Row[Any]) -> None:
    """Count a run and its streams anew, from the ledger, the cells and the rows."""
    right = {name: count for name, (_, count) in expected_totals(connection, run).items()}
    connection.execute(runs.update().where(runs.c.run_id == run.run_id).values(right))
    names = ("updates", "sampled", "first_step", "last_step")
    for stream, told, counted in stream_counts(connection, run.run_id):
        if told != counted:
            connection.execute(
                streams.update()
                .where(streams.c.run_id == run.run_id, streams.c.stream == stream)
                .values(dict(zip(names, counted, strict=True)))
            )
