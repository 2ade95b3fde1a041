"""Scalars of a stream: rows by name, the cells that are rolled up of them, and the user's own steps.

A value is superseded where a later attempt of its stream did the step again, whether or not it logged the name then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import CTE, Connection, Select, bindparam, func, select

from ampmon.wire import SCALAR_NAMES_MAX
from ampmon_server.cells import scalars as cells_of
from ampmon_server.cells.merging import Cells
from ampmon_server.cells.scalars import LAYOUT, ROWS
from ampmon_server.store import pyramid
from ampmon_server.store.engine import fetch
from ampmon_server.store.numbers import INTEGER_MAX
from ampmon_server.store.pyramid import BITS, TOP, Pyramid
from ampmon_server.store.ranges import Range
from ampmon_server.store.scalers import not_superseded
from ampmon_server.store.windows import Series, Stretch
from ampmon_server.tables import scalar_rollups, scalars, streams


SCALARS = Pyramid(scalar_rollups, LAYOUT.dtype, cells_of.merge)

REBUILT_AT_ONCE = 1 << BITS * 4
"""Steps whose cells are made anew together."""

NAMES_AT_ONCE = 1000
"""PostgreSQL takes at most 65 535 values with a statement."""

_KIND_VALUES = np.array([0.0, np.nan, np.inf, -np.inf])


class Logged(NamedTuple):
    """The stream whose scalars are meant. Of the steps before ``rows_from`` only what is rolled up is held."""

    run_id: bytes
    stream: int
    rows_from: int = 0


# -- writing -----------------------------------------------------------------------------------------------------------


def too_many(connection: Connection, of: Logged, names: Collection[str]) -> set[str]:
    """Those of ``names`` that nothing was logged under yet, where the stream has no room for all of them."""
    new = set(names) - set(_tops(connection, of, names))
    if not new or len(new) + len(names_of(connection, of)) <= SCALAR_NAMES_MAX:
        return set()
    return new


def refresh(
    connection: Connection, of: Logged, names: Iterable[str], first: int, last: int
) -> None:
    """Make the cells of the steps from ``first`` to ``last`` anew from their rows.

    Steps whose rows are no longer all held stay as they are.
    """
    if last < of.rows_from:
        return
    within = pyramid.cells_of(max(first, of.rows_from), last)
    for some in _some_at_once(names):
        held = _cells(connection, of, some, pyramid.steps_of(within))
        for name in some:
            new = SCALARS.roll(held.get(name, cells_of.empty()), 1)
            pyramid.put(connection, SCALARS, (of.run_id, of.stream, name), within, new)


def supersede(connection: Connection, of: Logged, attempt: int, within: Range) -> None:
    """Leave out what attempts before ``attempt`` logged at steps that it has done again, both ends included."""
    found, table = _names(of), scalars.c
    earlier = select(table.step).where(
        table.run_id == of.run_id,
        table.stream == of.stream,
        table.name == found.c.name,
        table.step.between(*within),
        table.attempt < attempt,
    )
    again = [name for (name,) in fetch(connection, select(found.c.name).where(earlier.exists()))]
    if again:
        refresh(connection, of, again, *within)


def rebuild(connection: Connection, run_id: bytes) -> None:
    """Make the cells of all of a run's scalars anew from the rows that are held."""
    table = scalars.c
    ends = connection.execute(
        select(table.stream, table.name, func.min(table.step), func.max(table.step))
        .where(table.run_id == run_id)
        .group_by(table.stream, table.name)
    ).all()
    rows_from = dict(
        connection.execute(
            select(streams.c.stream, streams.c.rows_from).where(streams.c.run_id == run_id)
        ).all()
    )
    for stream, name, first, last in ends:
        of = Logged(run_id, stream, rows_from.get(stream, 0))
        for start in range(first, last + 1, REBUILT_AT_ONCE):
            stop = min(start + REBUILT_AT_ONCE - 1, last)
            refresh(connection, of, [name], start, stop)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_rows(
    connection: Connection,
    of: Logged,
    names: Sequence[str],
    within: Range,
    limit: int | None = None,
) -> list[tuple[Any, ...]]:
    """(name, step, time, value, kind, user_step) in order of name and step, none superseded; both ends included."""
    wanted = {
        "of_run": of.run_id,
        "of_stream": of.stream,
        "names": names,
        "first": within[0],
        "last": within[1],
        "most": INTEGER_MAX if limit is None else limit,
    }
    return fetch(connection, _reading(), wanted)


@lru_cache
def _reading() -> Select[Any]:
    """Made once: to put it together takes longer than to read a few rows by it."""
    table, later = scalars.c, scalars.alias("logged_later").c
    again = select(later.step).where(
        later.run_id == table.run_id,
        later.stream == table.stream,
        later.name == table.name,
        later.step == table.step,
        later.attempt > table.attempt,
    )
    return (
        select(table.name, table.step, table.time, table.value, table.kind, table.user_step)
        .where(
            table.run_id == bindparam("of_run"),
            table.stream == bindparam("of_stream"),
            table.name.in_(bindparam("names", expanding=True)),
            table.step.between(bindparam("first"), bindparam("last")),
            not_superseded(table.run_id, table.stream, table.step, table.attempt),
            ~again.exists(),
        )
        .order_by(table.name, table.step)
        .limit(bindparam("most"))
    )


def _cells(
    connection: Connection, of: Logged, names: Sequence[str], within: Range
) -> dict[str, Cells]:
    """Values as cells of one, by name."""
    rows = read_rows(connection, of, names, within)
    return {
        name: _cells_of_rows(list(each)) for name, each in groupby(rows, key=lambda row: row[0])
    }


def _cells_of_rows(rows: Sequence[tuple[Any, ...]]) -> Cells:
    made = np.fromiter(
        (
            (step, time, 0.0 if value is None else value, -1 if user is None else user)
            for _, step, time, value, _, user in rows
        ),
        ROWS,
        len(rows),
    )
    kinds = np.fromiter((row[4] for row in rows), np.int64, len(rows))
    made["value"] += _KIND_VALUES[kinds]
    return cells_of.of_rows(made)


def read_cells(connection: Connection, of: Logged, name: str, first: int, last: int) -> Cells:
    """The values of a name from step ``first`` to ``last``, both included, as cells of one."""
    return _cells(connection, of, [name], (first, last)).get(name, cells_of.empty())


def window(connection: Connection, of: Logged, name: str, stretch: Stretch, columns: int) -> Cells:
    """The cells of a name in a stretch, as `windows.Series.window` finds them."""
    rows = partial(read_cells, connection, of, name)
    key = (of.run_id, of.stream, name)
    return Series(connection, SCALARS, key, rows, of.rows_from).window(stretch, columns)


def summaries(connection: Connection, of: Logged, names: Iterable[str]) -> dict[str, Cells]:
    """All values of each name as one cell, [1]; without those of which there are none."""
    return {
        name: cells_of.merge(cells, np.zeros(1, np.int64))
        for name, pages in _tops(connection, of, names).items()
        if len(cells := SCALARS.unpack(pages))
    }


def _tops(connection: Connection, of: Logged, names: Iterable[str]) -> dict[str, list[bytes]]:
    """The pages of the highest level, which every name has that something was logged under."""
    found: dict[str, list[bytes]] = {}
    for some in _some_at_once(names):
        wanted = {"of_run": of.run_id, "of_stream": of.stream, "names": some}
        for name, data in fetch(connection, _reading_tops(), wanted):
            found.setdefault(name, []).append(data)
    return found


@lru_cache
def _reading_tops() -> Select[Any]:
    table = scalar_rollups.c
    return (
        select(table.name, table.data)
        .where(
            table.run_id == bindparam("of_run"),
            table.stream == bindparam("of_stream"),
            table.name.in_(bindparam("names", expanding=True)),
            table.level == TOP,
        )
        .order_by(table.name, table.bucket)
    )


def _some_at_once(names: Iterable[str]) -> Iterator[list[str]]:
    wanted = list(names)
    for at in range(0, len(wanted), NAMES_AT_ONCE):
        yield wanted[at : at + NAMES_AT_ONCE]


def names_of(connection: Connection, of: Logged) -> list[str]:
    """Every name that was logged, in order."""
    found = _names(of).c.name
    return [name for (name,) in fetch(connection, select(found).where(found.is_not(None)))]


def _names(of: Logged) -> CTE:
    """The same, and a null. Steps from name to name in the index: there are few, and many values."""
    table = scalar_rollups.c
    mine = (table.run_id == of.run_id, table.stream == of.stream)
    found = select(func.min(table.name).label("name")).where(*mine).cte("found", recursive=True)
    following = (
        select(func.min(table.name)).where(*mine, table.name > found.c.name).scalar_subquery()
    )
    return found.union_all(select(following).where(found.c.name.is_not(None)))
