"""Stores the logged values of a stream: pages of rows by name, and the cells rolled up from them.

A value is superseded if a later attempt of its stream repeats the step, whether or not it logs the name again. If an
attempt logs a name twice at one step, the last value counts. Cells contain only values that are not superseded. They
are built once the page of their rows is no longer the newest of its name. Readers roll up the newest page themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import CTE, Connection, bindparam, func, select

from ampmon.wire import SCALAR_NAMES_MAX
from ampmon_server.model.aggregates import scalars as cells_of
from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.model.aggregates.scalars import LAYOUT, ROWS, Rows
from ampmon_server.store.engine.numbers import INTEGER_MAX, split
from ampmon_server.store.engine.rows import fetch, of_stream
from ampmon_server.store.pages.pages import PAGE_BITS, PagedSeries, Tails, last_of_each_step
from ampmon_server.store.pages.pyramid import TOP, Pyramid
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import WindowedSeries
from ampmon_server.store.schema.tables import scalar_pages, scalar_rollups, streams
from ampmon_server.store.streams.scalers import StreamSource, current


SCALARS = Pyramid(scalar_rollups, LAYOUT)


def _page_summary(rows: Rows) -> tuple[Any, ...]:
    """The columns of a page that SQL can query."""
    rows = last_of_each_step(rows)
    value = rows["value"]
    known = value[np.isfinite(value)]
    with np.errstate(over="ignore"):
        beside = (known.min(), known.max(), known.mean()) if len(known) else ()
    return (
        len(rows),
        len(rows) - len(known),
        *(int(rows[name][end]) for name in ("step", "time") for end in (0, -1)),
        *(split(float(each))[0] for each in (value[0], value[-1], *(beside or [np.nan] * 3))),
    )


PAGES = PagedSeries(scalar_pages, ROWS, _page_summary, replaces=True)
"""By run, stream and name."""


_OF = of_stream(scalar_pages)


def _names() -> CTE:
    """Every name, and a null. Steps from name to name in the index, because there are few names but many pages."""
    name = scalar_pages.c.name
    found = select(func.min(name).label("name")).where(_OF).cte("found", recursive=True)
    following = select(func.min(name)).where(_OF, name > found.c.name).scalar_subquery()
    return found.union_all(select(following).where(found.c.name.is_not(None)))


_FOUND = _names().c.name
_NEWEST_PAGE = scalar_pages.alias("newest")
_NEWEST = (
    select(func.max(_NEWEST_PAGE.c.bucket))
    .where(of_stream(_NEWEST_PAGE), _NEWEST_PAGE.c.name == _FOUND)
    .scalar_subquery()
)
_NAMING = select(_FOUND).where(_FOUND.is_not(None)).order_by(_FOUND)
_PAGED_WITHIN = select(_FOUND, _NEWEST).where(
    select(scalar_pages.c.bucket)
    .where(
        _OF,
        scalar_pages.c.name == _FOUND,
        scalar_pages.c.bucket.between(bindparam("low"), bindparam("high")),
    )
    .exists()
)
"""Selects names that have a page numbered ``low`` to ``high``, and the number of their newest page."""
_READING_NEWEST = (
    select(scalar_pages.c.name, scalar_pages.c.bucket, scalar_pages.c.data)
    .where(_OF, scalar_pages.c.name == _FOUND, scalar_pages.c.bucket == _NEWEST)
    .order_by(scalar_pages.c.name)
)
"""Selects every name, and its newest page."""
_READING_TOPS = (
    select(scalar_rollups.c.name, scalar_rollups.c.data)
    .where(
        of_stream(scalar_rollups),
        scalar_rollups.c.name.in_(bindparam("names", expanding=True)),
        scalar_rollups.c.level == TOP,
    )
    .order_by(scalar_rollups.c.name, scalar_rollups.c.bucket)
)
"""Selects the pages of the highest level of cells of some ``names``."""


_LOGGING = select(streams.c.stream).where(
    streams.c.run_id == bindparam("of"),
    select(scalar_pages.c.bucket)
    .where(scalar_pages.c.run_id == bindparam("of"), scalar_pages.c.stream == streams.c.stream)
    .exists(),
)
"""Selects the streams of a run that have logged values."""


# -- writing -----------------------------------------------------------------------------------------------------------


def too_many(
    connection: Connection, source: StreamSource, names: Collection[str], tails: Tails
) -> set[str]:
    """The new ones of ``names``, if the stream has no room for all of them; else none."""
    new = {name for name in names if PAGES.tail(connection, (*source.key, name), tails).number < 0}
    if not new or len(new) + len(names_of(connection, source)) <= SCALAR_NAMES_MAX:
        return set()
    return new


def write(
    connection: Connection, source: StreamSource, logged: Mapping[str, Rows], tails: Tails
) -> None:
    """Store values by name, given in the order of logging.

    Values of steps whose rows are pruned are dropped. A name's newest page is never pruned, so it still takes values.
    """
    new, edges = {}, {}
    for name, rows in logged.items():
        key = (*source.key, name)
        edge = PAGES.tail(connection, key, tails).edge
        kept = rows[rows["step"] >= min(source.rows_from, edge)]
        if len(kept):
            new[key], edges[key] = kept[np.argsort(kept["step"], kind="stable")], edge
    PAGES.put(connection, new, tails)
    for key, rows in new.items():
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        before, after = edges[key], tails[key].edge
        _series(connection, source, key[-1], before, after).refresh(first, last, before)


def supersede(connection: Connection, source: StreamSource, attempt: int, within: Range) -> None:
    """Rebuild cells without the values of earlier attempts at steps that ``attempt`` repeats, both ends included."""
    first, last = within
    wanted = {**source.bound, "low": first >> PAGE_BITS, "high": last >> PAGE_BITS}
    for name, newest in fetch(connection, _PAGED_WITHIN, wanted):
        edge = newest << PAGE_BITS
        start, end = max(first, min(source.rows_from, edge)), min(last, edge - 1)
        if start <= end:
            rows = PAGES.read(connection, (*source.key, name), start, end)
            if (rows["attempt"] < attempt).any():
                _series(connection, source, name, edge, edge).roll_up(start, end)


# -- reading -----------------------------------------------------------------------------------------------------------


def series(connection: Connection, source: StreamSource, name: str) -> WindowedSeries:
    """The values of a name. Without a page, only cells before the stream's ``rows_from`` exist."""
    newest = PAGES.preceding(connection, (*source.key, name), INTEGER_MAX + 1)
    edge = source.rows_from if newest is None else newest
    return _series(connection, source, name, edge, edge)


def _series(
    connection: Connection, source: StreamSource, name: str, sealed: int, edge: int
) -> WindowedSeries:
    """The values of a name, whose newest page begins at step ``edge``. The page at ``sealed`` still has its rows."""
    return WindowedSeries(
        connection,
        SCALARS,
        (*source.key, name),
        partial(read_cells, connection, source, name),
        min(source.rows_from, sealed),
        edge,
        partial(PAGES.following, connection, (*source.key, name)),
    )


def read_rows(
    connection: Connection, source: StreamSource, name: str, within: Range, limit: int
) -> Rows:
    """The first ``limit`` values at steps ``within``, ends included, without superseded ones. Raises Damaged."""
    key = (*source.key, name)

    def read(first: int, last: int) -> Rows:
        return _current(connection, source, PAGES.read(connection, key, first, last))

    return PAGES.head(read, partial(PAGES.following, connection, key), within, limit)


def read_cells(
    connection: Connection, source: StreamSource, name: str, first: int, last: int
) -> Cells:
    """The values of a name from step ``first`` to ``last``, both included, as one cell per value. Raises Damaged."""
    rows = PAGES.read(connection, (*source.key, name), first, last)
    return cells_of.of_rows(_current(connection, source, rows))


def _current(connection: Connection, source: StreamSource, rows: Rows) -> Rows:
    """The rows that are not superseded."""
    if not source.overlaid:
        return rows
    rows = last_of_each_step(rows)
    return rows[current(connection, source, rows["step"], rows["attempt"])]


def summaries(connection: Connection, source: StreamSource) -> dict[str, Cells]:
    """All values of each name as one cell, [1]. Names without values are left out."""
    newest = fetch(connection, _READING_NEWEST, source.bound)
    if not newest:
        return {}
    rolled: dict[str, list[bytes]] = {name: [] for name, _, _ in newest}
    for name, data in fetch(connection, _READING_TOPS, {**source.bound, "names": list(rolled)}):
        rolled[name].append(data)
    found = {}
    for name, number, data in newest:
        rows = _current(connection, source, PAGES.opened(number, data))
        cells = joined([SCALARS.unpack(rolled[name]), cells_of.of_rows(rows)])
        if len(cells):
            found[name] = cells_of.merge(cells, np.zeros(1, np.int64))
    return found


def logging(connection: Connection, sources: Sequence[StreamSource]) -> Sequence[StreamSource]:
    """Those of some streams of a run that have logged values: of thousands of ranks, mostly one."""
    if len(sources) < 2:
        return sources
    found = {number for (number,) in fetch(connection, _LOGGING, {"of": sources[0].run_id})}
    return [source for source in sources if source.number in found]


def names_of(connection: Connection, source: StreamSource) -> list[str]:
    """Every logged name, in order."""
    return [name for (name,) in fetch(connection, _NAMING, source.bound)]
