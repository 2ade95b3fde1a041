"""Tracks what was forwarded of each run, and reads the next rows for a destination in pieces of bounded size.

The ledger lists the stored steps of each attempt, and the cursor the forwarded ones. The difference remains to be
forwarded, in whatever order the records arrived. If a later attempt did a step again, only its values are forwarded.
One transaction reads everything, so rows and ledger agree.

- Updates are merged over all ranks of a scaler. While the run goes on, a step waits until every rank of the attempt
  has reached it.
- Logged values belong to one rank. More values may be logged at a step until the next update, so a step waits for that
  update or for the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import orjson
from sqlalchemy import Connection, Row, and_, insert, select

from ampmon_server.model.aggregates.updates import count
from ampmon_server.store.engine import engine, postgresql
from ampmon_server.store.engine.engine import Calls, reads, writes
from ampmon_server.store.engine.numbers import KINDS, join
from ampmon_server.store.engine.rows import fetch, insert_rows
from ampmon_server.store.pages import ranges
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.reading import columns
from ampmon_server.store.schema.global_tables import destinations
from ampmon_server.store.schema.tables import attempts, forwarded, ledger, runs
from ampmon_server.store.streams import state
from ampmon_server.store.streams.scalers import Scaler, StreamSource, scalers_of
from ampmon_server.store.updates import scalars, updates


STEPS_MAX = 1024
"""The most updates read at once. A portion with this many points is complete."""
VALUES_MAX = 16_384
"""The most logged values read at once, unless a single step has more."""

Held: TypeAlias = dict[int, list[Range]]
"""Ranges of steps by attempt number."""

_SAMPLED = {
    "zero_share": "zero_fraction",
    "subnormal_share": "subnormal_fraction",
    "headroom_bits": "headroom_bits",
}


class Point(NamedTuple):
    """The values of a step by tag. ``time`` is in us since the epoch."""

    step: int
    time: int
    values: dict[str, float]


class Piece(NamedTuple):
    """Points in order of step. ``resumed`` marks the first points of an attempt that resumed the run."""

    points: list[Point]
    resumed: bool


@dataclass(frozen=True, slots=True)
class Portion:
    """The next part of a run to forward.

    ``position`` is what the destination last asked to remember, empty at first. ``started`` is in us since the epoch.
    ``ended`` is how the run ended, None while it runs. ``version`` is the run's version if nothing remains after this
    portion, else 0. ``ranges`` is the cursor to store once the portion is forwarded.
    """

    destination: str
    run_id: UUID
    project: str
    name: str
    started: int
    ended: str | None
    pieces: list[Piece]
    position: str
    version: int
    ranges: str


@dataclass(frozen=True, slots=True)
class _Series:
    """One series to forward: the steps that are ``ready`` to be forwarded, and all ``stored`` steps."""

    key: str
    ready: Held
    stored: Held
    read: Callable[[int, Range], tuple[list[Point], int]]
    """Reads the first points of an attempt in a range, and returns them with the last step that it examined."""

    def left(self, attempt: int, done: Sequence[Range]) -> list[Range]:
        """The steps of an attempt that remain to be forwarded, without those that a later attempt did again."""
        later = ranges.merge(
            each for number, held in self.stored.items() if number > attempt for each in held
        )
        return ranges.without(ranges.without(self.ready.get(attempt, ()), later), done)


class Behind(NamedTuple):
    """A run that is not completely forwarded, and when it last changed, in us since the epoch."""

    run_id: UUID
    changed: int


def begin(connection: Connection, destination: str) -> None:
    """Record that forwarding begins now, unless it began before. Runs unchanged since then are not forwarded.

    Call it within `Forwarding.forwarding_alone`.
    """
    known = select(destinations).where(destinations.c.destination == destination)
    if connection.execute(known).first() is None:
        begun = {"destination": destination, "since": engine.now_us()}
        connection.execute(insert(destinations).values(begun))


def behind(connection: Connection, destination: str, since: int, limit: int) -> list[Behind]:
    """Return the first ``limit`` runs that are not completely forwarded and changed at ``since`` or later.

    They are in order of that change.
    """
    run, held = runs.c, forwarded.c
    begun = select(destinations.c.since).where(destinations.c.destination == destination)
    mine = and_(held.run_id == run.run_id, held.destination == destination)
    rows = connection.execute(
        select(run.run_id, run.changed)
        .outerjoin(forwarded, mine)
        .where(run.deleted == 0, run.changed >= since, run.changed >= begun.scalar_subquery())
        .where(held.version.is_(None) | (held.version < run.version))
        .order_by(run.changed)
        .limit(limit)
    )
    return [Behind(UUID(bytes=run_id), changed) for run_id, changed in rows]


def keep(connection: Connection, portion: Portion, position: str) -> None:
    """Record that a portion was forwarded, and the destination's new ``position``. Raises NotFound."""
    # Under the run's lock, so that no row is written for a run that is deleted meanwhile.
    state.find(connection, portion.run_id, held=True)
    of = portion.run_id.bytes, portion.destination
    row = (*of, portion.version, portion.ranges, position)
    insert_rows(connection, forwarded, [row], replace=True)


def next_portion(connection: Connection, destination: str, run_id: UUID) -> Portion:
    """Return the next portion of a run to forward. It has no points if nothing is left. Raises NotFound."""
    run, held = state.find(connection, run_id), forwarded.c
    of = (held.run_id == run_id.bytes, held.destination == destination)
    stored = connection.execute(select(held.ranges, held.position).where(*of)).one_or_none()
    done, position = stored or ("", "")
    cursor: dict[str, list[Range]] = {
        key: [(first, last) for first, last in steps]
        for key, steps in orjson.loads(done or "{}").items()
    }
    pieces, whole = _next_pieces(connection, run, cursor)
    return Portion(
        destination,
        run_id,
        run.project,
        run.name,
        run.started,
        None if run.state == "running" else run.state,
        pieces,
        position,
        run.version if whole else 0,
        orjson.dumps(cursor).decode(),
    )


def _next_pieces(
    connection: Connection, run: Row[Any], cursor: dict[str, list[Range]]
) -> tuple[list[Piece], bool]:
    """The next pieces after the cursor, which moves behind them, and whether nothing remains after them."""
    pieces: list[Piece] = []
    points, whole = 0, True
    for key, attempt, series in _in_order(connection, run):
        for left in series.left(attempt, cursor.get(key, ())):
            if points >= STEPS_MAX:
                whole = False
                break
            first, last = left
            while first <= last and points < STEPS_MAX:
                found, through = series.read(attempt, (first, last))
                if found:
                    known = any(each.endswith(f":{attempt}") for each in cursor)
                    pieces.append(Piece(found, resumed=attempt > 0 and not known))
                points += len(found)
                # Steps without a point too, or each round would read them again.
                cursor[key] = ranges.merge([*cursor.get(key, ()), (first, through)])
                first = through + 1
            whole = whole and first > last
    return pieces, whole


class Forwarding(Calls):
    """Calls for forwarding runs to destinations. Each call is one transaction."""

    begin_forwarding = writes(begin)
    behind = reads(behind)
    portion = reads(next_portion)
    keep_forwarded = writes(keep)

    @contextmanager
    def forwarding_alone(self, destination: str) -> Iterator[bool]:
        """Yield whether this process alone may forward to the destination until the block ends."""
        if self._engine.dialect.name == "sqlite":  # SQLite has a single server process
            yield True
            return
        # The lock lives as long as this open transaction, so a killed process frees it.
        with engine.writing(self._engine) as connection:
            yield postgresql.try_lock(connection, destination)


def _in_order(connection: Connection, run: Row[Any]) -> Iterator[tuple[str, int, _Series]]:
    """Every series of each attempt with its key in the cursor, earlier attempts first."""
    found = _series(connection, run)
    for attempt in sorted({number for each in found for number in each.ready}):
        for series in found:
            yield f"{series.key}:{attempt}", attempt, series


def _series(connection: Connection, run: Row[Any]) -> list[_Series]:
    over = run.state != "running"
    stored = _stored(connection, run.run_id)
    start = attempts.c
    begun = select(start.rank, start.attempt, start.origin).where(start.run_id == run.run_id)
    origins = {(rank, number): origin for rank, number, origin in fetch(connection, begun)}
    scalers = sorted(scalers_of(connection, run.run_id), key=attrgetter("number"))
    lowest = min((source.rank for scaler in scalers for source in scaler.sources), default=0)
    found = []
    for place, scaler in enumerate(scalers):
        prefix = f"amp/{scaler.name}/" if place else "amp/"
        of = [stored.get(source.number, {}) for source in scaler.sources]
        ready = {attempt: _agreed(of, attempt, over=over) for each in of for attempt in each}
        together = {
            attempt: ranges.merge(r for each in of for r in each.get(attempt, ()))
            for attempt in ready
        }
        read = partial(_updates, connection, scaler, prefix)
        found.append(_Series(f"updates {scaler.number}", ready, together, read))
        for source, held in zip(scaler.sources, of, strict=True):
            first = {number: origins.get((source.rank, number), 0) for number in held}
            before = "" if source.rank == lowest else f"rank{source.rank}/"
            values = _Series(
                f"scalars {source.number}",
                {
                    number: _logged(steps, first[number], over=over)
                    for number, steps in held.items()
                },
                held,
                partial(_values, connection, source, before),
            )
            found.append(values)
    return found


def _stored(connection: Connection, run_id: bytes) -> Mapping[int, Held]:
    """The stored steps by stream and attempt. Steps with no record missing between them are one range."""
    of = ledger.c
    statement = (
        select(of.stream, of.attempt, of.first_step, of.last_step)
        .where(of.run_id == run_id, of.first_step.is_not(None))
        .order_by(of.stream, of.attempt, of.first_step)
    )
    found: dict[int, Held] = {}
    for stream, attempt, first, last in fetch(connection, statement):
        found.setdefault(stream, {}).setdefault(attempt, []).append((first, last))
    return found


def _agreed(of: Sequence[Held], attempt: int, *, over: bool) -> list[Range]:
    """The steps that every rank of an attempt has reached, or, if the run is ``over``, those that any rank has."""
    ranks = [each[attempt] for each in of if attempt in each]
    stored = ranges.merge(each for rank in ranks for each in rank)
    last = max(rank[-1][1] for rank in ranks) if over else min(rank[-1][1] for rank in ranks)
    return [(low, min(high, last)) for low, high in stored if low <= last]


def _logged(steps: Sequence[Range], origin: int, *, over: bool) -> list[Range]:
    """The steps whose logged values are complete.

    If the run is ``over``, these are all steps from the origin to one after the last update: values may belong to an
    update that was lost, or to a last one that never finished.
    """
    if over:
        return [(origin, steps[-1][1] + 1)]
    return ranges.merge((first, last - 1) for first, last in steps if first < last)


def _updates(
    connection: Connection, scaler: Scaler, prefix: str, attempt: int, within: Range
) -> tuple[list[Point], int]:
    first, last = within[0], min(within[1], within[0] + STEPS_MAX - 1)
    page = columns.read(connection, scaler, start=first, stop=last + 1, limit=STEPS_MAX)
    total = count(updates.window(connection, scaler, Stretch(0, first), columns=0)).skipped
    steps = page.columns["step"] or []
    points = []
    for place, step in enumerate(steps):
        row: dict[str, Any] = {
            name: None if of is None else of[place] for name, of in page.columns.items()
        }
        total += row["skipped"]
        measured = {
            "scale": _number(row, "scale"),
            "skipped": row["skipped"],
            "skipped_total": total,
        }
        measured |= {name: _number(row, of) for name, of in _SAMPLED.items()}
        known = {
            prefix + name: float(value) for name, value in measured.items() if value is not None
        }
        points.append(Point(step, row["time"], known))
    return points, last


def _number(row: Mapping[str, Any], name: str) -> float | None:
    return join(row[name], KINDS.index(row.get(f"{name}_kind")))


def _values(
    connection: Connection, source: StreamSource, prefix: str, attempt: int, within: Range
) -> tuple[list[Point], int]:
    names = scalars.names_of(connection, source)
    first = within[0]
    # Each name may have a value at each step.
    last = min(within[1], first + max(VALUES_MAX // max(len(names), 1), 1) - 1)
    found: dict[tuple[int, int], dict[str, float]] = {}
    for name in names:
        rows = scalars.PAGES.read(connection, (*source.key, name), first, last)
        rows = rows[rows["attempt"] == attempt]
        columns = (rows[field].tolist() for field in ("step", "time", "value"))
        for step, time, value in zip(*columns, strict=True):
            found.setdefault((step, time), {})[prefix + name] = value
    points = [Point(step, time, values) for (step, time), values in sorted(found.items())]
    return points, last if names else within[1]
