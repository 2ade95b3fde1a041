"""Checks the ledger against the rows that it lists, and the totals of a run against its parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, func, select

from ampmon_server.model.aggregates.updates import Counts
from ampmon_server.store.admin.checks.finding import REPAIR, RESTORE, Defect
from ampmon_server.store.admin.checks.pages import Counted, HeldPages, Place, UpdateSpan
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages import ranges
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.schema.tables import events, ledger, runs, streams
from ampmon_server.store.streams.scalers import scalers_of
from ampmon_server.store.updates import resumes, rollups


def ledger_of(connection: Connection, run_id: bytes) -> dict[Place, list[Range]]:
    """Return the ledger of a run: the stored ranges of seq of each stream and attempt, in order."""
    table = ledger.c
    found = defaultdict(list)
    for stream, attempt, first, last in connection.execute(
        select(table.stream, table.attempt, table.first_seq, table.last_seq)
        .where(table.run_id == run_id)
        .order_by(table.stream, table.attempt, table.first_seq)
    ):
        found[stream, attempt].append((first, last))
    return dict(found)


def contiguity(
    connection: Connection, run_id: bytes, rows: HeldPages, where: str
) -> Iterator[Defect]:
    """Yield ledger ranges that touch or overlap, and ranges that disagree with the stored rows."""
    held = ledger_of(connection, run_id)
    for (stream, attempt), found in held.items():
        if found != ranges.merge(found) or any(last < first for first, last in found):
            place = f"{where}, stream {stream}, attempt {attempt}"
            yield Defect(place, "ranges of its ledger touch or overlap", RESTORE)
    yield from _events(connection, run_id, held, where)
    unknown = rows.damaged | _pruned(connection, run_id)
    yield from _rows(connection, run_id, held, rows, unknown, where)
    yield from _steps(connection, run_id, rows.spans, unknown, where)


def _events(
    connection: Connection, run_id: bytes, held: Mapping[Place, Sequence[Range]], where: str
) -> Iterator[Defect]:
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
            yield Defect(place, f"{len(unknown)} events are not in the ledger", RESTORE)


def _rows(
    connection: Connection,
    run_id: bytes,
    held: Mapping[Place, Sequence[Range]],
    pages: HeldPages,
    unknown: Collection[int],
    where: str,
) -> Iterator[Defect]:
    """Yield places whose ledger and rows differ in number.

    A scalars record may be several rows or none. So where values were logged, only too many rows are a defect.
    """
    of_events, of_scalars = _of_events(connection, run_id), pages.logged()
    for place in sorted(held.keys() | pages.spans.keys()):
        recorded = ranges.size(held.get(place, []))
        updates = pages.spans[place].updates if place in pages.spans else 0
        rows = updates + of_events.get(place, 0) + of_scalars.get(place, 0)
        complete = place[0] not in unknown and place not in of_scalars
        if rows > recorded or (rows < recorded and complete):
            yield Defect(
                f"{where}, stream {place[0]}, attempt {place[1]}",
                f"its ledger lists {recorded} records, but {rows} are stored",
                RESTORE,
            )


def _steps(
    connection: Connection,
    run_id: bytes,
    spans: Mapping[Place, UpdateSpan],
    unknown: Collection[int],
    where: str,
) -> Iterator[Defect]:
    """Yield places where the ledger has other first and last steps than the updates.

    Checks only streams whose rows are all stored.
    """
    table = ledger.c
    stated = {
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
    for place in sorted(stated.keys() | rows.keys()):
        if place[0] not in unknown and stated.get(place) != rows.get(place):
            yield Defect(
                f"{where}, stream {place[0]}, attempt {place[1]}",
                f"its ledger has steps {stated.get(place)}, but its updates have {rows.get(place)}",
                RESTORE,
            )


def _of_events(connection: Connection, run_id: bytes) -> dict[Place, int]:
    """The number of events by stream and attempt, without the server's own events."""
    of = events.c
    recorded = select(of.stream, of.attempt, func.count()).where(
        of.run_id == run_id, of.kind != resumes.KIND
    )
    rows = connection.execute(recorded.group_by(of.stream, of.attempt))
    return {(stream, attempt): count for stream, attempt, count in rows}


def _pruned(connection: Connection, run_id: bytes) -> set[int]:
    table = streams.c
    gone = select(table.stream).where(table.run_id == run_id, table.rows_from > 0)
    return set(connection.scalars(gone))


def totals(connection: Connection, run: Row[Any], rows: HeldPages, where: str) -> Iterator[Defect]:
    """Yield totals of a run that differ from its ledger and cells, and of its streams that differ from their rows."""
    for name, (held, expected) in expected_totals(connection, run).items():
        if held != expected:
            what = f"its stored total of {name} is {held}, but its parts have {expected}"
            yield Defect(where, what, REPAIR)
    for stream, stated, counted in stream_counts(connection, run.run_id, rows):
        if stated != counted:
            place = f"{where}, stream {stream}"
            what = f"its updates, samples, first and last step are {(*stated,)}, but its rows have {(*counted,)}"
            yield Defect(place, what, REPAIR)


def expected_totals(connection: Connection, run: Row[Any]) -> dict[str, tuple[int, int]]:
    """Return the stored and the correct value of each column of `runs` that counts something.

    Leaves out the totals of updates if their cells are damaged.
    """
    held = ledger_of(connection, run.run_id).values()
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
        return found  # the check of the cells reports it
    for name, count in counts._asdict().items():
        found[name] = (getattr(run, name), count)
    return found


def stream_counts(
    connection: Connection, run_id: bytes, rows: HeldPages
) -> Iterator[tuple[int, Counted, Counted]]:
    """Yield each stream with its stored counts and those of its rows.

    Leaves out streams whose rows are pruned or cannot be read.
    """
    table = streams.c
    rows_of_streams = connection.execute(
        select(table.stream, table.updates, table.sampled, table.first_step, table.last_step)
        .where(table.run_id == run_id, table.rows_from == 0)
        .order_by(table.stream)
    )
    for stream, *says in rows_of_streams.all():
        if stream not in rows.damaged:
            yield stream, Counted(*says), rows.counted.get(stream, Counted())


def mend(connection: Connection, run: Row[Any], rows: HeldPages) -> None:
    """Recount a run and its streams from the ledger, the cells and the rows."""
    right = {name: count for name, (_, count) in expected_totals(connection, run).items()}
    connection.execute(runs.update().where(runs.c.run_id == run.run_id).values(right))
    for stream, stated, counted in stream_counts(connection, run.run_id, rows):
        if stated != counted:
            connection.execute(
                streams.update()
                .where(streams.c.run_id == run.run_id, streams.c.stream == stream)
                .values(counted._asdict())
            )
