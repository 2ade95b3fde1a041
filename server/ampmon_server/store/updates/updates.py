"""Reads updates: the rows of each stream in pages, those of a scaler over all ranks, and the cells that roll them up.

Cells cover a scaler over all ranks and attempts, and are stored under its lowest stream number. Rows are read by step
alone, so a cell is built from the same rows, whichever process sent them and in whatever order. Cells are built once,
when the page of their rows is no longer the newest. Readers roll up the newest page themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, Table, bindparam, func, select, tuple_

from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.model.aggregates.updates import LAYOUT, ROWS, Rows, of_rows
from ampmon_server.model.aggregates.updates import empty as no_cells
from ampmon_server.model.series import Ints
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.engine.numbers import INTEGER_MAX, split
from ampmon_server.store.engine.rows import checked, fetch
from ampmon_server.store.pages import ranges
from ampmon_server.store.pages.pages import PAGE_BITS, PagedSeries, last_of_each_step, unpack
from ampmon_server.store.pages.pyramid import BITS, TOP, Pyramid
from ampmon_server.store.pages.windows import Stretch, WindowedSeries
from ampmon_server.store.schema.tables import rollups, runs, skips, streams, update_pages
from ampmon_server.store.streams.scalers import Scaler, StreamSource, sharded_attempts


GAPS_MAX = 64
"""If the lowest rank's rows have more gaps than this, the rows of other ranks are read as a whole."""


def _page_summary(rows: Rows) -> tuple[Any, ...]:
    """The columns of a page that SQL can query."""
    rows = last_of_each_step(rows)
    scale, timed = rows["scale"], rows["duration_ns"][rows["duration_ns"] >= 0]
    known = scale[np.isfinite(scale)]
    return (
        len(rows),
        int(rows["skipped"].sum()),
        int(rows["sampled"].sum()),
        *(int(rows[name][end]) for name in ("step", "time") for end in (0, -1)),
        split(float(scale[0]))[0],
        split(float(rows["scale_after"][-1]))[0],
        float(known.min()) if len(known) else None,
        float(known.max()) if len(known) else None,
        len(timed),
        float(timed.sum(dtype=np.float64)) / 1000,
    )


PAGES = PagedSeries(update_pages, ROWS, _page_summary)
"""By run and stream."""

UPDATES = Pyramid(rollups, LAYOUT)


def empty() -> Rows:
    return np.zeros(0, ROWS)


def next_step(connection: Connection, scaler: Scaler, step: int) -> int | None:
    """The first step at or after ``step`` that may have a row."""
    found: list[int] = []
    for source in scaler.sources:
        # Nothing is earlier than ``step`` itself, so the lowest rank is usually the only one asked.
        if step in found:
            break
        if not source.is_before(step):
            first = PAGES.following(connection, source.key, step)
            found += [] if first is None else [first]
    return min(found, default=None)


def read_rows(
    connection: Connection, scaler: Scaler, *, start: int = 0, stop: int = INTEGER_MAX + 1
) -> Rows:
    """The rows with ``start`` <= step < ``stop``, each step once. Raises Damaged.

    The row of the lowest rank that has the step stands for all ranks.
    """
    first, last = start, stop - 1
    meeting = [source for source in scaler.sources if source.meets(first, last)]
    if not meeting:
        return empty()
    first = max(first, min(source.first_step or 0 for source in meeting))
    last = min(last, max(source.reach for source in meeting))
    rows = _of_source(connection, meeting[0], first, last)
    for source in meeting[1:]:
        # They have every step, so the ranks left add none.
        if len(rows) > last - first:
            break
        rows = _with(connection, source, rows, (first, last))
    return rows


def first_rows(
    connection: Connection, scaler: Scaler, *, start: int, stop: int, limit: int
) -> Rows:
    """The first ``limit`` rows of `read_rows`."""

    def read(first: int, last: int) -> Rows:
        return read_rows(connection, scaler, start=first, stop=last + 1)

    return PAGES.head(read, partial(next_step, connection, scaler), (start, stop - 1), limit)


def _of_source(connection: Connection, source: StreamSource, first: int, last: int) -> Rows:
    rows = PAGES.read(connection, source.key, first, min(last, source.counts_to))
    return last_of_each_step(rows) if source.overlaid else rows


def _with(connection: Connection, source: StreamSource, rows: Rows, within: ranges.Range) -> Rows:
    """Add to ``rows`` those that only this source has."""
    gaps = ranges.gaps(rows["step"].tolist(), *within)
    if len(gaps) > GAPS_MAX:
        gaps = [within]
    found = [_of_source(connection, source, *gap) for gap in gaps if source.meets(*gap)]
    others = joined(found or [empty()])
    both = joined([rows, others[~np.isin(others["step"], rows["step"])]])
    return both[np.argsort(both["step"], kind="stable")]


def read_at(connection: Connection, source: StreamSource, steps: Ints) -> Cells:
    """The rows that a stream has at ``steps``, as one cell per row. Raises Damaged."""
    within = ranges.merge((step, step) for step in (steps >> PAGE_BITS).tolist())
    found = [
        _of_source(connection, source, low << PAGE_BITS, (high + 1 << PAGE_BITS) - 1)
        for low, high in within
    ]
    rows = joined(found or [empty()])
    return of_rows(rows[np.isin(rows["step"], steps)])


_SKIPS = (
    select(skips.c.stream, skips.c.step)
    .distinct()
    .where(
        skips.c.run_id == bindparam("of"),
        skips.c.step.between(bindparam("first"), bindparam("last")),
        skips.c.stream.in_(
            select(streams.c.stream).where(
                streams.c.run_id == bindparam("of"), streams.c.scaler == bindparam("name")
            )
        ),
    )
    .order_by(skips.c.step)
)
"""Selects the streams of a scaler and the steps that any attempt skipped, in order of step."""


def _skipped(connection: Connection, scaler: Scaler, among: Ints) -> Ints:
    """Those of the steps ``among``, given in order, that any rank skipped."""
    if not len(among):
        return among
    ends = {"first": int(among[0]), "last": int(among[-1])}
    wanted = {"of": scaler.run_id, "name": scaler.name, **ends}
    found = np.array(fetch(connection, _SKIPS, wanted), np.int64).reshape(-1, 2)
    found = found[np.isin(found[:, 1], among)]
    streams_with = set(found[:, 0].tolist())
    parts = [np.zeros(0, np.int64)]
    for source in scaler.sources:
        if source.number not in streams_with:
            continue
        steps = found[found[:, 0] == source.number, 1]
        # A later attempt may have repeated a skipped step without a skip.
        if source.overlaid:
            rows = _of_source(connection, source, int(steps[0]), int(steps[-1]))
            steps = rows["step"][rows["skipped"] == 1]
        parts.append(steps[steps <= source.counts_to])
    return np.concatenate(parts)


def _sampled_elsewhere(
    connection: Connection, scaler: Scaler, among: Ints, sharded: Sequence[int]
) -> Iterator[Ints]:
    """The steps that ranks other than the lowest sampled, from the first to the last of ``among``.

    Samples of ``sharded`` attempts are left out: they are parts.
    """
    for source in scaler.sources[1:] if len(among) else ():
        first, last = int(among[0]), int(among[-1])
        if source.sampled and source.meets(first, last):
            rows = _of_source(connection, source, first, last)
            yield rows["step"][(rows["sampled"] == 1) & ~np.isin(rows["attempt"], sharded)]


def read_cells(connection: Connection, scaler: Scaler, first: int, last: int) -> Cells:
    """The updates from step ``first`` to ``last``, both included, as one cell per update, to roll up or draw."""
    return of_rows(
        agreed(connection, scaler, read_rows(connection, scaler, start=first, stop=last + 1))
    )


def with_skips(connection: Connection, scaler: Scaler, rows: Rows) -> Rows:
    """Mark rows of `read_rows` as skipped where any rank skipped. Changes and returns ``rows``."""
    if len(scaler.sources) > 1:
        # Ranks mostly skip together: then the lowest rank's row says so, and no other rank's rows are read.
        applied = rows["step"][rows["skipped"] == 0]
        rows["skipped"] |= np.isin(rows["step"], _skipped(connection, scaler, applied))
    return rows


def agreed(connection: Connection, scaler: Scaler, rows: Rows) -> Rows:
    """Mark rows of `read_rows` as skipped or sampled where any rank was. Changes and returns ``rows``.

    Of sharded gradients only samples of all ranks count, so the row of the lowest rank is enough. Each row follows its
    own attempt: a run may resume with another layout.
    """
    if len(scaler.sources) < 2 or not len(rows):
        return rows
    rows = with_skips(connection, scaler, rows)
    sharded = sharded_attempts(connection, scaler)
    replicated = ~np.isin(rows["attempt"], sharded)
    for steps in _sampled_elsewhere(connection, scaler, rows["step"][replicated], sharded):
        rows["sampled"] |= replicated & np.isin(rows["step"], steps)
    return rows


# -- cells -------------------------------------------------------------------------------------------------------------


def series(connection: Connection, scaler: Scaler, known: Sequence[Rows] = ()) -> WindowedSeries:
    """A scaler's updates. The scaler must have a stream.

    ``known`` are all rows of its only stream from some step on, which are all that will be read.
    """

    def cells(first: int, last: int) -> Cells:
        if not known:
            return read_cells(connection, scaler, first, last)
        rows = last_of_each_step(joined(known))
        start, stop = np.searchsorted(rows["step"], [first, last + 1])
        return of_rows(rows[start:stop])

    return WindowedSeries(
        connection,
        UPDATES,
        (scaler.run_id, scaler.number),
        cells,
        scaler.rows_from,
        scaler.edge,
        partial(next_step, connection, scaler),
    )


def window(connection: Connection, scaler: Scaler, stretch: Stretch, columns: int) -> Cells:
    """The cells of a scaler's updates in a stretch; see `windows.WindowedSeries.window`."""
    return series(connection, scaler).window(stretch, columns) if scaler.sources else no_cells()


def narrowed(scaler: Scaler, stretch: Stretch, updates: Cells) -> Stretch:
    """A stretch whose ``updates`` are known, to read its samples. They are at steps of these if one rank has both.

    Where rows are pruned, a sample may be in the stretch although the cell of its update begins before the stretch.
    """
    if len(scaler.sources) > 1 or scaler.rows_from or not len(updates):
        return stretch
    first, last = int(updates["first"][0]), int(updates["last"][-1])
    if first < scaler.samples_from:
        return stretch
    return replace(stretch, within=(first, last))


def steps(connection: Connection, scaler: Scaler, stretch: Stretch) -> tuple[int, int]:
    """The steps of a stretch, end excluded. A stretch of time is looked up in the cells: (0, 0) without updates."""
    if stretch.by == "step":
        return stretch.start, stretch.stop
    cells = window(connection, scaler, stretch, columns=1)
    return (int(cells["first"].min()), int(cells["last"].max()) + 1) if len(cells) else (0, 0)


# -- the scales that a list draws of many runs -------------------------------------------------------------------------


SCALE_CELLS = 16
"""A run has at least this many cells and at most 16 times as many. Short runs have fewer, of the finest level."""


def scales(
    connection: Connection, run_ids: Sequence[UUID], within: Collection[str] | None = None
) -> dict[UUID, Cells]:
    """Cells of the updates of each run's first scaler, in three statements for all.

    Deleted runs, runs without a scaler and damaged ones are left out, and with ``within`` those of other projects.
    """
    ids = [run_id.bytes for run_id in run_ids]
    found: dict[bytes, tuple[int, int, int]] = {}
    for run_id, number, first, last in _scalers_of_runs(connection, ids, within):
        # The newest page over all ranks is not rolled up yet.
        place = number, _level(first, last), (last or 0) >> PAGE_BITS
        found.setdefault(run_id, place)
    cells = [(run_id, number, level) for run_id, (number, level, _) in found.items()]
    rows = [(run_id, number, page) for run_id, (number, _, page) in found.items()]
    rolled = _pages_of_runs(connection, rollups, cells)
    newest = _pages_of_runs(connection, update_pages, rows)
    drawn: dict[UUID, Cells] = {}
    for run_id, (_, level, _) in found.items():
        with suppress(Damaged):  # it must not hide the other runs
            drawn[UUID(bytes=run_id)] = _drawn(
                level, rolled.get(run_id, []), newest.get(run_id, [])
            )
    return drawn


def _level(first: int | None, last: int | None) -> int:
    """The coarsest level with enough cells from the first to the last step, or the finest."""
    steps = 0 if first is None or last is None else last - first + 1
    enough = (level for level in range(TOP, 1, -1) if steps >> BITS * level >= SCALE_CELLS)
    return next(enough, 1)


def _pages_of_runs(
    connection: Connection, table: Table, wanted: Sequence[tuple[bytes, int, int]]
) -> dict[bytes, list[bytes]]:
    """The pages of each run that are ``wanted`` by stream, and level or page number."""
    of = table.c
    which = tuple_(of.run_id, of.stream, of.level if "level" in of else of.bucket)
    pages: dict[bytes, list[bytes]] = {}
    for run_id, data in connection.execute(
        select(of.run_id, of.data).where(which.in_(wanted)).order_by(of.run_id, of.bucket)
    ):
        pages.setdefault(run_id, []).append(data)
    return pages


def _drawn(level: int, rolled: Sequence[bytes], newest: Sequence[bytes]) -> Cells:
    rows = [of_rows(last_of_each_step(unpack(data, ROWS))) for data in newest]
    return UPDATES.roll(joined([no_cells(), UPDATES.unpack(rolled), *rows]), level)


def _scalers_of_runs(
    connection: Connection, ids: list[bytes], projects: Collection[str] | None
) -> list[tuple[bytes, int, int | None, int | None]]:
    """Run, number, first and last step of each scaler, with a run's first scaler first."""
    table = streams.c
    number = func.min(table.stream)
    statement = (
        select(table.run_id, number, func.min(table.first_step), func.max(table.last_step))
        .join(runs, runs.c.run_id == table.run_id)
        .where(table.run_id.in_(ids), runs.c.deleted == 0, table.scaler != "")
        .group_by(table.run_id, table.scaler)
        .order_by(number)
    )
    if projects is not None:
        statement = statement.where(runs.c.project.in_(projects))
    columns, found = tuple(statement.selected_columns), []
    for row in connection.execute(statement):
        with suppress(Damaged):
            found.append(tuple(checked(columns, row)))
    return found
