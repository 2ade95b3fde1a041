"""Holds the ledger to the rows it speaks of, and what is counted of a run to what is counted of its parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Table, func, select

from ampmon_server.cells.updates import Counts
from ampmon_server.store import ranges, resumes, rollups
from ampmon_server.store.checks.finding import REPAIR, RESTORE, Finding
from ampmon_server.store.pyramid import BadPage
from ampmon_server.store.ranges import Range
from ampmon_server.store.scalers import scalers_of
from ampmon_server.tables import events, ledger, runs, scalars, streams, updates


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
    yield from _rows(connection, run_id, held, where)
    yield from _steps(connection, run_id, where)


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
    connection: Connection, run_id: bytes, held: Mapping[Place, Sequence[Range]], where: str
) -> Iterator[Finding]:
    """A record of scalars may be several rows or none, so where there are such only an excess shows."""
    of_updates = _counts(connection, updates, run_id)
    of_events = _counts(connection, events, run_id)
    of_scalars = _counts(connection, scalars, run_id)
    pruned = _pruned(connection, run_id)
    for place in sorted(held.keys() | of_updates.keys()):
        recorded = ranges.size(held.get(place, []))
        rows = of_updates.get(place, 0) + of_events.get(place, 0) + of_scalars.get(place, 0)
        complete = place[0] not in pruned and place not in of_scalars
        if rows > recorded or (rows < recorded and complete):
            yield Finding(
                f"{where}, stream {place[0]}, attempt {place[1]}",
                f"its ledger has {recorded} records, and {rows} are held",
                RESTORE,
            )


def _steps(connection: Connection, run_id: bytes, where: str) -> Iterator[Finding]:
    """That the ledger says of which step the first and the last update is, of streams whose rows are all held."""
    told, rows = (
        {
            (stream, attempt): (first, last)
            for stream, attempt, first, last in connection.execute(
                select(of.c.stream, of.c.attempt, func.min(first), func.max(last))
                .where(of.c.run_id == run_id, last.is_not(None))
                .group_by(of.c.stream, of.c.attempt)
            )
        }
        for of, first, last in (
            (ledger, ledger.c.first_step, ledger.c.last_step),
            (updates, updates.c.step, updates.c.step),
        )
    )
    pruned = _pruned(connection, run_id)
    for place in sorted(told.keys() | rows.keys()):
        if place[0] not in pruned and told.get(place) != rows.get(place):
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
    except BadPage:
        return found  # which is a finding of its own
    for name, count in counts._asdict().items():
        found[name] = (getattr(run, name), count)
    return found


Counted = tuple[int, int, int | None, int | None]
"""Distinct steps, samples, the first and the last step."""


def stream_counts(connection: Connection, run_id: bytes) -> Iterator[tuple[int, Counted, Counted]]:
    """Stream, what it says and what its rows say, for those whose rows are all held."""
    table, of = streams.c, updates.c
    counted = (
        func.count(of.step.distinct()),
        func.coalesce(func.sum(of.sampled), 0),
        func.min(of.step),
        func.max(of.step),
    )
    told = connection.execute(
        select(table.stream, table.updates, table.sampled, table.first_step, table.last_step)
        .where(table.run_id == run_id, table.rows_from == 0)
        .order_by(table.stream)
    ).all()
    for stream, *says in told:
        rows = select(*counted).where(of.run_id == run_id, of.stream == stream)
        distinct, sampled, first, last = connection.execute(rows).one()
        yield stream, (says[0], says[1], says[2], says[3]), (distinct, int(sampled), first, last)


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
