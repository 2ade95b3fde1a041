"""Checks recorded data: pages of rows, blocks of samples, the ledger that lists them, and what is counted from them.

Each page is read once: `RecordedRows` remembers what other checks need of its rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from sqlalchemy import Connection, Row, Table, select, tuple_, update

from ampmon_server.model.aggregates.updates import Counts, count
from ampmon_server.model.series import Flags, Ints
from ampmon_server.model.words import plural
from ampmon_server.store.admin.derived import REPAIR, RESTORE, Defect
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages import packing, ranges
from ampmon_server.store.pages.pages import AT_ONCE, PAGE_BITS, PagedSeries, Rows, last_of_each_step
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.samples import totals
from ampmon_server.store.schema.tables import (
    alerts,
    attempts,
    events,
    gradient_blocks,
    headers,
    ledger,
    module_blocks,
    runs,
    skips,
    streams,
)
from ampmon_server.store.streams.scalers import scalers_of, unpack_modules, unpack_parameters
from ampmon_server.store.updates import scalars, updates
from ampmon_server.store.updates.events import RESUME


_BLOCKS_AT_ONCE = 64
"""Blocks read by one statement. A block may hold several megabytes."""

_Place: TypeAlias = tuple[int, int]
"""Stream and attempt."""


def _in_order(
    connection: Connection, table: Table, run_id: bytes, at_once: int
) -> Iterator[Row[Any]]:
    """Yield the rows of a run in order of the table's primary key, reading ``at_once`` rows with each statement."""
    _, *key = table.primary_key
    statement = select(table).where(table.c.run_id == run_id).order_by(*key).limit(at_once)
    following = statement
    while rows := connection.execute(following).all():
        yield from rows
        last = (getattr(rows[-1], column.name) for column in key)
        following = statement.where(tuple_(*key) > tuple_(*last))


# -- pages -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RecordedRows:
    """What the pages of a run hold: the updates and steps of each attempt, and the distinct steps and samples of each
    stream. Those of ``incomplete`` streams are damaged or pruned. ``listed`` is the ledger of each attempt.
    """

    listed: dict[_Place, _InLedger]
    incomplete: set[int]
    defects: list[Defect] = field(default_factory=list)
    updates: Counter[_Place] = field(default_factory=Counter)
    steps: dict[_Place, Range] = field(default_factory=dict)
    distinct: Counter[int] = field(default_factory=Counter)
    sampled: Counter[int] = field(default_factory=Counter)
    _logged: dict[tuple[int, int, int], Flags] = field(default_factory=dict)
    """By stream, attempt and page number: for each step of the page, whether anything was logged."""

    def logged(self) -> Counter[_Place]:
        """The number of steps at which anything was logged."""
        found: Counter[_Place] = Counter()
        for (stream, attempt, _), steps in self._logged.items():
            found[stream, attempt] += int(steps.sum())
        return found

    def note_updates(self, stream: int, rows: Rows) -> None:
        self.distinct[stream] += len(last_of_each_step(rows))
        self.sampled[stream] += int(rows["sampled"].sum())
        for attempt, mine in _by_attempt(rows):
            first, last = int(mine["step"][0]), int(mine["step"][-1])
            self.updates[stream, attempt] += len(mine)
            before = self.steps.get((stream, attempt), (first, last))
            self.steps[stream, attempt] = before[0], last

    def note_scalars(self, stream: int, rows: Rows) -> None:
        for attempt, mine in _by_attempt(rows):
            page = stream, attempt, int(mine["step"][0]) >> PAGE_BITS
            marks = self._logged.setdefault(page, np.zeros(1 << PAGE_BITS, np.bool_))
            marks[mine["step"] & (1 << PAGE_BITS) - 1] = True


def _by_attempt(rows: Rows) -> Iterator[tuple[int, Rows]]:
    for attempt in np.unique(rows["attempt"]).tolist():
        yield attempt, rows[rows["attempt"] == attempt]


def read_rows(connection: Connection, run_id: bytes, *, mending: bool = False) -> RecordedRows:
    """Read and check every page of a run. With ``mending``, also correct wrong summary columns."""
    table = streams.c
    pruned = select(table.stream).where(table.run_id == run_id, table.rows_from > 0)
    found = RecordedRows(_ledger(connection, run_id), set(connection.scalars(pruned)))
    for paged, note in (
        (updates.PAGES, found.note_updates),
        (scalars.PAGES, found.note_scalars),
    ):
        for row in _in_order(connection, paged.table, run_id, AT_ONCE):
            try:
                rows = paged.opened(row.bucket, row.data)
            except Damaged as error:
                found.incomplete.add(row.stream)
                found.defects.append(Defect(_place(paged, row), str(error), RESTORE))
                continue
            note(row.stream, rows)
            summary = _summary(paged, rows)
            wrong = [name for name, value in summary.items() if getattr(row, name) != value]
            if wrong:
                what = f"its summary ({', '.join(wrong)}) differs from its rows"
                found.defects.append(Defect(_place(paged, row), what, REPAIR))
            if wrong and mending:
                key = (column == getattr(row, column.name) for column in paged.table.primary_key)
                connection.execute(update(paged.table).where(*key).values(summary))
    return found


def _place(paged: PagedSeries, row: Row[Any]) -> str:
    first = row.bucket << PAGE_BITS
    named = f", {row.name!r}" if "name" in row._mapping else ""
    steps = f"steps {first} to {first + (1 << PAGE_BITS) - 1}"
    return f"{paged.table.name}, stream {row.stream}{named}, {steps}"


def _summary(paged: PagedSeries, rows: Rows) -> dict[str, Any]:
    """The summary columns that a page should have."""
    columns = [each for each in paged.table.c if not each.primary_key and each.name != "data"]
    return {each.name: value for each, value in zip(columns, paged.summarize(rows), strict=True)}


# -- the ledger --------------------------------------------------------------------------------------------------------


class _InLedger(NamedTuple):
    """What the ledger lists of an attempt: ranges of seq, in order, and the first and last step of its updates."""

    seqs: Sequence[Range] = ()
    steps: Range | None = None


def _ledger(connection: Connection, run_id: bytes) -> dict[_Place, _InLedger]:
    rows = defaultdict(list)
    listed = select(ledger).where(ledger.c.run_id == run_id).order_by(ledger.c.first_seq)
    for row in connection.execute(listed):
        rows[row.stream, row.attempt].append(row)
    found = {}
    for place, mine in rows.items():
        steps = [(row.first_step, row.last_step) for row in mine if row.last_step is not None]
        ends = (min(steps)[0], max(last for _, last in steps)) if steps else None
        found[place] = _InLedger([(row.first_seq, row.last_seq) for row in mine], ends)
    return found


def of_ledger(connection: Connection, run_id: bytes, rows: RecordedRows) -> Iterator[Defect]:
    """Yield events that the ledger does not list, and attempts whose ledger disagrees with itself or the rows."""
    listed, logged = rows.listed, rows.logged()
    of_events: Counter[_Place] = Counter()
    for place, seqs in _events(connection, run_id).items():
        of_events[place] = sum(seqs.values())
        numbers = sorted(seqs)
        unknown = ranges.absent(numbers, listed.get(place, _InLedger()).seqs)
        if unknown:
            where = f"{_attempt(place)}, seq {numbers[unknown[0]]}"
            yield Defect(where, f"{len(unknown)} events are not in the ledger", RESTORE)
    for place in sorted(listed.keys() | rows.steps.keys()):
        mine = listed.get(place, _InLedger())
        stored = rows.updates[place] + of_events[place] + logged[place]
        is_whole = place[0] not in rows.incomplete
        # A scalars record may be several rows or none.
        for what in _wrong_ranges(mine.seqs, stored, exact=is_whole and not logged[place]):
            yield Defect(_attempt(place), what, RESTORE)
        if is_whole and mine.steps != rows.steps.get(place):
            what = (
                f"its ledger has steps {mine.steps}, but its updates have {rows.steps.get(place)}"
            )
            yield Defect(_attempt(place), what, RESTORE)


def _attempt(place: _Place) -> str:
    return f"stream {place[0]}, attempt {place[1]}"


def _events(connection: Connection, run_id: bytes) -> dict[_Place, dict[int, bool]]:
    """The seqs of events by place, and whether it is a trainer's own, not the server's."""
    table = events.c
    found: dict[_Place, dict[int, bool]] = defaultdict(dict)
    for stream, attempt, seq, kind in connection.execute(
        select(table.stream, table.attempt, table.seq, table.kind).where(table.run_id == run_id)
    ):
        found[stream, attempt][seq] = kind != RESUME
    return found


def _wrong_ranges(seqs: Sequence[Range], stored: int, *, exact: bool) -> Iterator[str]:
    """Yield in which ways the seqs in the ledger are wrong. Unless rows are ``exact``, there may be fewer."""
    if ranges.merge(seqs) != list(seqs) or any(last < first for first, last in seqs):
        yield "ranges of its ledger touch or overlap"
    listed = ranges.size(seqs)
    if stored > listed or (exact and stored < listed):
        yield f"its ledger lists {listed} records, but {stored} are stored"


# -- totals ------------------------------------------------------------------------------------------------------------


def of_totals(connection: Connection, run: Row[Any], rows: RecordedRows) -> Iterator[Defect]:
    """Yield totals of a run that differ from its ledger and cells, and of its streams that differ from their rows."""
    for name, expected in _run_totals(connection, run.run_id, rows).items():
        held = getattr(run, name)
        if held != expected:
            what = f"its stored total of {name} is {held}, but its parts have {expected}"
            yield Defect("", what, REPAIR)
    for stream, held, counted in _stream_totals(connection, run.run_id, rows):
        what = f"its updates, samples, first and last step are {held}, but its rows have {counted}"
        yield Defect(f"stream {stream}", what, REPAIR)


def mend_totals(connection: Connection, run_id: bytes, rows: RecordedRows) -> None:
    """Recount a run and its streams from the ledger, the cells and the rows."""
    right = _run_totals(connection, run_id, rows)
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(right))
    for stream, _, counted in list(_stream_totals(connection, run_id, rows)):
        mine = (streams.c.run_id == run_id, streams.c.stream == stream)
        values = dict(zip(_COUNTS, counted, strict=True))
        connection.execute(update(streams).where(*mine).values(values))


def _run_totals(connection: Connection, run_id: bytes, rows: RecordedRows) -> dict[str, int]:
    """The correct value of each column of `runs` that counts something, but of none whose cells are damaged."""
    seqs = [listed.seqs for listed in rows.listed.values()]
    found = {"records": sum(map(ranges.size, seqs)), "lost": sum(map(ranges.missing, seqs))}
    try:
        counts = Counts()
        for scaler in scalers_of(connection, run_id):
            counts = counts.plus(count(updates.window(connection, scaler, Stretch(), columns=0)))
    except Damaged:
        return found  # the check of the cells reports it
    return found | counts._asdict()


_COUNTS = ("updates", "sampled", "first_step", "last_step")


def _stream_totals(
    connection: Connection, run_id: bytes, rows: RecordedRows
) -> Iterator[tuple[int, tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each stream whose `_COUNTS` are wrong, with them and the right ones.

    The ledger keeps the steps of pruned rows. Their number is known only to the stream, and at least that of its rows.
    """
    table = streams.c
    columns = (table[name] for name in _COUNTS)
    held = select(table.stream, *columns).where(table.run_id == run_id).order_by(table.stream)
    steps: dict[int, list[int]] = defaultdict(list)
    ends = *rows.steps.items(), *((place, each.steps) for place, each in rows.listed.items())
    for (stream, _), within in ends:
        steps[stream] += within or ()
    incomplete = rows.incomplete | {
        place[0] for place, each in rows.listed.items() if each.steps != rows.steps.get(place)
    }
    for stream, *counts in connection.execute(held).all():
        numbers = [rows.distinct[stream], rows.sampled[stream]]
        if stream in incomplete:
            known = [each if isinstance(each, int) else 0 for each in counts[:2]]
            numbers = [max(pair) for pair in zip(known, numbers, strict=True)]
        mine = steps[stream]
        counted = (*numbers, min(mine, default=None), max(mine, default=None))
        if tuple(counts) != counted:
            yield stream, tuple(counts), counted


# -- texts -------------------------------------------------------------------------------------------------------------


_OBJECT = msgspec.json.Decoder(dict[str, Any] | None)
_LIST = msgspec.json.Decoder(list[Any] | None)
_JSON: dict[Table, dict[str, msgspec.json.Decoder[Any]]] = {
    runs: {"tags": msgspec.json.Decoder(list[str] | None), "findings": _LIST},
    attempts: {"versions": _OBJECT, "config": _OBJECT},
    headers: {"settings": _OBJECT},
    skips: {"culprits": _LIST},
    events: {"detail": _OBJECT},
    alerts: {"found": _OBJECT},
}


def of_texts(connection: Connection, run: Row[Any]) -> Iterator[Defect]:
    """Yield columns with JSON that cannot be read, or is of another kind."""
    for table, kinds in _JSON.items():
        rows = [run] if table is runs else _in_order(connection, table, run.run_id, AT_ONCE)
        wrong = Counter(each for row in rows for each in kinds if not _fits(row, each, kinds))
        for name, number in sorted(wrong.items()):
            yield Defect(
                f"{table.name}.{name}", f"{plural(number, 'text')} cannot be read as JSON", RESTORE
            )


def _fits(row: Row[Any], name: str, kinds: dict[str, msgspec.json.Decoder[Any]]) -> bool:
    try:
        kinds[name].decode(getattr(row, name) or "null")
    except msgspec.DecodeError:
        return False
    return True


# -- samples -----------------------------------------------------------------------------------------------------------


def of_samples(connection: Connection, run_id: bytes, rows: RecordedRows) -> Iterator[Defect]:
    """Yield blocks that cannot be read, hold other steps than their key, or overlap another of their attempt.

    Also yield streams with more or fewer samples than sampled updates, headers of sampled attempts that are missing,
    and headers that cannot be read.
    """
    stored, sampled = Counter[int](), set[_Place]()
    for table in (gradient_blocks, module_blocks):
        before: dict[_Place, int] = {}
        for row in _in_order(connection, table, run_id, _BLOCKS_AT_ONCE):
            steps = f"steps {row.first_step} to {row.last_step}"
            where, place = f"{table.name}, stream {row.stream}, {steps}", (row.stream, row.attempt)
            sampled.add(place)
            stored[row.stream] += row.samples * (table is gradient_blocks)
            try:
                held = packing.stack_from_bytes(row[-3:]).steps
                sums = totals.samples_from_bytes(row[6:-3])["step"]
            except (Damaged, ValueError) as error:
                yield Defect(where, str(error), RESTORE)
                continue
            if not _matches(row, held) or (
                table is gradient_blocks and sums.tolist() != held.tolist()
            ):
                yield Defect(where, "its steps differ from its key", RESTORE)
            elif row.first_step <= before.get(place, -1):
                yield Defect(where, "it overlaps the block before it", RESTORE)
            before[place] = max(before.get(place, -1), row.last_step)
    yield from _uncounted(connection, run_id, rows, stored)
    yield from _headers(connection, run_id, sampled)


def _matches(row: Row[Any], steps: Ints) -> bool:
    return (
        len(steps) == row.samples > 0
        and (int(steps[0]), int(steps[-1])) == (row.first_step, row.last_step)
        and bool((np.diff(steps) > 0).all())
    )


def _uncounted(
    connection: Connection, run_id: bytes, rows: RecordedRows, stored: Counter[int]
) -> Iterator[Defect]:
    """Yield whole streams whose samples are not as many as their sampled updates."""
    of = streams.c
    whole = select(of.stream).where(of.run_id == run_id, of.samples_from == 0).order_by(of.stream)
    for stream in connection.scalars(whole):
        if stream not in rows.incomplete and stored[stream] != rows.sampled[stream]:
            what = f"it has {stored[stream]} samples, but {rows.sampled[stream]} sampled updates"
            yield Defect(f"stream {stream}", what, RESTORE)


def _headers(connection: Connection, run_id: bytes, wanted: set[_Place]) -> Iterator[Defect]:
    for row in connection.execute(select(headers).where(headers.c.run_id == run_id)):
        wanted.discard((row.stream, row.attempt))
        try:
            unpack_parameters(row.parameters)
            unpack_modules(row.modules)
        except (Damaged, ValueError) as error:
            where = f"{_attempt((row.stream, row.attempt))}, its header"
            yield Defect(where, str(error), RESTORE)
    for place in sorted(wanted):
        yield Defect(_attempt(place), "its header is missing", RESTORE)
