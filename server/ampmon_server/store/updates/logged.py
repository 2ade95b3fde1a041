"""Reads logged scalars: the names of a run, the values of one name as columns, and the user's own steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

import numpy as np
from sqlalchemy import Connection

from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import Rows, not_finite
from ampmon_server.model.series import Ints, UserSteps
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.numbers import INTEGER_MAX, fields_of, split_named
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import WHOLE, Stretch, WindowedSeries
from ampmon_server.store.streams.scalers import Scaler, StreamSource, sources
from ampmon_server.store.updates import scalars


Axis: TypeAlias = Literal["step", "time", "user"]
"""What x is: the step, the time in us since the epoch, or the user's own step."""

_Line: TypeAlias = tuple[Ints, Ints]
"""The steps [p] of some points, and the user's own steps [p] there."""


@dataclass(frozen=True, slots=True)
class Name:
    """A logged name on one stream: its newest value, and the number and extremes of all its values.

    Times are microseconds since the epoch. ``least`` and ``greatest`` are of finite values, null if there are none.
    ``user_steps`` is how many values were logged with the user's own step.
    """

    name: str
    stream: str
    rank: int
    scaler: str
    n: int
    not_finite: int
    least: float | None
    greatest: float | None
    step: int
    time: int
    value: float | None
    value_kind: str | None
    user_steps: int


def lowest(names: Sequence[Name]) -> dict[str, Name]:
    """Return names, given in order of rank, by name: those of the lowest rank that has each."""
    return {each.name: each for each in reversed(names)}


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a name, each step once, in order of step. Before step ``rows_from`` only aggregates are stored."""

    name: str
    stream: str
    step: list[int]
    time: list[int]
    user_step: list[int | None]
    value: list[float | None]
    value_kind: list[str | None]
    rows_from: int
    next: int | None


def names(connection: Connection, run_id: UUID, *, stream: int | None = None) -> list[Name]:
    """The logged names in order, each with its newest value, of one stream or of all. Raises NotFound."""
    found = [
        _name(source, name, cells)
        for source in scalars.logging(connection, sources(connection, run_id.bytes, stream))
        for name, cells in scalars.summaries(connection, source).items()
    ]
    return sorted(found, key=lambda each: (each.name, each.rank, int(each.stream)))


def _name(source: StreamSource, name: str, cells: Cells) -> Name:
    cell = cells[0]
    lost = int(not_finite(cells)[0])
    known = lost < int(cell["n"])
    return Name(
        name=name,
        stream=str(source.number),
        rank=source.rank,
        scaler=source.scaler,
        n=int(cell["n"]),
        not_finite=lost,
        least=float(cell["value_min"]) if known else None,
        greatest=float(cell["value_max"]) if known else None,
        step=int(cell["last"]),
        time=int(cell["time_last"]),
        **fields_of("value", cell["value_last"]),
        user_steps=int(cell["user"]),
    )


def values(
    connection: Connection,
    run_id: UUID,
    name: str,
    *,
    stream: int | None,
    start: int,
    stop: int,
    limit: int,
) -> Values:
    """At most ``limit`` values with ``start`` <= step < ``stop``. Raises NotFound for an unknown name."""

    def read(source: StreamSource) -> Rows:
        within = max(start, source.rows_from), stop - 1
        return scalars.read_rows(connection, source, name, within, limit + 1)

    source, rows = _holder(connection, run_id, stream, name, read)
    pairs = [split_named(each) for each in rows["value"][:limit].tolist()]
    return Values(
        name=name,
        stream=str(source.number),
        step=rows["step"][:limit].tolist(),
        time=rows["time"][:limit].tolist(),
        user_step=[None if each < 0 else each for each in rows["user_step"][:limit].tolist()],
        value=[value for value, _ in pairs],
        value_kind=[kind for _, kind in pairs],
        rows_from=source.rows_from,
        next=int(rows["step"][limit]) if len(rows) > limit else None,
    )


def cells(
    connection: Connection,
    run_id: UUID,
    name: str,
    stretch: Stretch,
    *,
    stream: int | None = None,
    columns: int = 1000,
) -> Cells:
    """The cells of a name from the lowest rank that has it. Raises NotFound for an unknown name."""

    def read(source: StreamSource) -> Cells:
        return scalars.series(connection, source, name).window(stretch, columns)

    return _holder(connection, run_id, stream, name, read)[1]


def _holder(
    connection: Connection,
    run_id: UUID,
    stream: int | None,
    name: str,
    read: Callable[[StreamSource], Cells],
) -> tuple[StreamSource, Cells]:
    """The first stream that has a value of a name that is not superseded, and what ``read`` finds there."""
    for source in scalars.logging(connection, sources(connection, run_id.bytes, stream)):
        found = read(source)
        if len(found) or len(scalars.series(connection, source, name).window(WHOLE, columns=0)):
            return source, found
    raise NotFound(f"Run {run_id} has no logged value {name!r}.")


def stretch_of(
    connection: Connection,
    scaler: Scaler,
    *,
    start: int,
    stop: int,
    by: Axis,
    columns: int = 1000,
) -> tuple[Stretch, UserSteps | None] | None:
    """The stretch with ``start`` <= x < ``stop``, and the user's own steps if x is those; None if there are none."""
    if by != "user":
        return Stretch(start, stop, by), None
    low = start if start > 0 else None
    high = stop if stop <= INTEGER_MAX else None
    user = user_steps(connection, scaler, start=low, stop=high, columns=columns)
    if user is None:
        return None
    first = 0 if low is None else user.back(low)
    return Stretch(first, INTEGER_MAX + 1 if high is None else user.back(high)), user


def user_steps(
    connection: Connection,
    scaler: Scaler,
    *,
    start: int | None = None,
    stop: int | None = None,
    columns: int = 1000,
) -> UserSteps | None:
    """The user's own steps of a scaler; None if none were logged.

    The line goes through both ends of the cells that fill ``columns`` columns of the whole run, and of as many between
    the user's steps ``start`` and ``stop``. Where it reaches these two, it goes through each logged step.
    """
    series = _stepping(connection, scaler)
    if series is None:
        return None

    def points(within: Range, columns: int = columns) -> _Line:
        return _points(series.window(Stretch(*within), columns))

    whole = first, beyond = 0, INTEGER_MAX + 1
    line = points(whole)
    for user in (start, stop):
        if user is not None:
            line = _joined(line, points(_around(line, user), INTEGER_MAX))
    if start is not None:
        first, _ = _around(line, start)
    if stop is not None:
        _, beyond = _around(line, stop)
    if (first, beyond) != whole:
        line = _joined(line, points((first, beyond)))
    return UserSteps(*line)


def _around(line: _Line, user: int) -> Range:
    """The range of steps (end excluded) from the last point on a line before ``user`` to the first one after it."""
    step, users = line
    after = int(np.searchsorted(users, user))
    low = int(step[after - 1]) if after else 0
    return low, int(step[after]) + 1 if after < len(users) else INTEGER_MAX + 1


def _joined(one: _Line, other: _Line) -> _Line:
    return _rising(*(np.concatenate(both) for both in zip(one, other, strict=True)))


def _stepping(connection: Connection, scaler: Scaler) -> WindowedSeries | None:
    """The name most often logged with the user's own step, on the lowest rank that has one."""
    for source in scalars.logging(connection, scaler.sources):
        all_of = scalars.summaries(connection, source)
        given = {name: int(cells["user"].sum()) for name, cells in all_of.items()}
        if any(given.values()):
            return scalars.series(connection, source, max(given, key=lambda name: given[name]))
    return None


def _points(cells: Cells) -> _Line:
    """The first and last user's step in each cell that has any: their steps [p], and the user's steps [p]."""
    given = cells[cells["user"] > 0]
    return _rising(
        np.stack([given["user_first_step"], given["user_last_step"]], 1).ravel(),
        np.stack([given["user_first"], given["user_last"]], 1).ravel(),
    )


def _rising(step: Ints, user: Ints) -> _Line:
    """Sort points by step, each step once. The user's steps never fall: where the user restarts, they stay level."""
    step, first = np.unique(step, return_index=True)
    return step, np.maximum.accumulate(user[first]) if len(step) else user
