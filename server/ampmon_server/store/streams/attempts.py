"""Registers attempts (process starts): their number on the rank, their first step, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, bindparam, func, or_, select, true, update

from ampmon import wire
from ampmon_server.store.engine.errors import BadBatch, UnknownHeader
from ampmon_server.store.engine.numbers import INTEGER_MAX, json_text
from ampmon_server.store.engine.rows import fetch
from ampmon_server.store.schema.tables import attempts, ledger
from ampmon_server.store.streams.state import RunState


RANKS_MAX = 16_384
"""The most ranks of a run. All of them are read when one ends."""

BESIDE_US = 30 * 1_000_000
"""How long (in us) after a later start an old process may still seem alive: its last records may be in transit."""

GONE = "gone"
"""How an attempt ended that only its sender takes for crashed: where it cannot check the process, it guesses."""

_IS_GONE = attempts.c.ended == GONE
_OF_RUN = attempts.c.run_id == bindparam("of")
_ENDED = select(attempts.c.rank, attempts.c.ended).where(_OF_RUN).order_by(attempts.c.attempt)
_STARTS = (
    select(
        attempts.c.attempt,
        func.min(attempts.c.origin),
        func.min(attempts.c.origin_assumed),
        func.max(attempts.c.world_size),
        func.max(attempts.c.rank),
    )
    .where(_OF_RUN)
    .group_by(attempts.c.attempt)
    .order_by(attempts.c.attempt.desc())
)
"""Selects each start of a run, the newest first."""
_NEWEST = _STARTS.limit(1)
_REACHED = (
    select(ledger.c.stream, func.max(ledger.c.last_step))
    .where(ledger.c.run_id == bindparam("of"), ledger.c.attempt == bindparam("number"))
    .group_by(ledger.c.stream)
)


_LATER = attempts.alias().c
_NEWEST_OF_RANK = select(func.max(_LATER.attempt)).where(
    _LATER.run_id == bindparam("of"), _LATER.rank == attempts.c.rank
)
_FINDING = select(
    attempts.c.rank, attempts.c.attempt, attempts.c.origin, _NEWEST_OF_RANK.scalar_subquery()
).where(_OF_RUN, attempts.c.attempt_id == bindparam("id"))
"""Selects an attempt by its id, with the number of the newest on its rank."""


class Start(NamedTuple):
    """The newest start of a run, on ``ranks`` ranks. Earlier starts' updates from step ``origin`` on are undone.

    ``last`` is the last step of each stream with records, None if it has no update yet.
    """

    number: int
    origin: int
    ranks: int
    last: Mapping[int, int | None]

    @property
    def begun(self) -> bool:
        """Whether any stream has an update."""
        return any(step is not None for step in self.last.values())

    def reach(self, stream: int) -> int:
        """The last step of a stream that counts."""
        last = self.last.get(stream)
        return self.origin - 1 if last is None else max(last, self.origin - 1)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process start on a rank. ``number`` is that of the run's start that it belongs to, so a rank may have gaps.

    ``newest``: no later attempt on this rank is known.
    """

    rank: int
    number: int
    origin: int
    newest: bool


def resolve(
    connection: Connection, batch: wire.Batch, state: RunState, now: int, held: dict[UUID, Attempt]
) -> tuple[Attempt, bool, bool]:
    """Return the attempt of a batch, whether it is new, and whether its start has more ranks than known before.

    ``state`` is its run's row, locked by this transaction. ``held`` caches the attempts of the run, and is updated.
    Raises UnknownHeader if neither the database nor the batch has its header, and BadBatch for too many ranks.
    """
    known, wider = held.get(batch.attempt_id), False
    if known is None:
        of = {"of": batch.run_id.bytes, "id": batch.attempt_id.bytes}
        for rank, number, origin, newest in fetch(connection, _FINDING, of):
            known = Attempt(rank, number, origin, number == newest)
    new = known is None
    if known is None:
        before = world_sizes(connection, state.run_id)
        known = _register(connection, header_of(batch), state, now)
        size = before.get(known.number)
        wider = size is not None and size < world_sizes(connection, state.run_id)[known.number]
        held.clear()  # their `newest` may be out of date
    held[batch.attempt_id] = known
    return known, new, wider


def header_of(batch: wire.Batch) -> wire.AttemptHeader:
    """The attempt's header in a batch. Raises UnknownHeader."""
    headers = [header for header in batch.headers if isinstance(header, wire.AttemptHeader)]
    if not headers:
        raise UnknownHeader("attempt")
    return headers[-1]


def _register(
    connection: Connection, header: wire.AttemptHeader, state: RunState, now: int
) -> Attempt:
    table = attempts.c
    last = connection.scalar(
        select(func.max(table.attempt)).where(
            table.run_id == state.run_id, table.rank == header.rank
        )
    )
    if last is None and state.ranks >= RANKS_MAX:
        raise BadBatch("headers", f"the run would have more than {RANKS_MAX} ranks")
    number = _number(connection, header, state, -1 if last is None else last)
    origin, assumed = _origin(connection, header, number)
    described = ("rank", "started", "host", "pid", "boot_id", "world_size", "git_commit")
    row = {name: getattr(header, name) for name in described} | {
        "run_id": header.run_id.bytes,
        "attempt": number,
        "attempt_id": header.attempt_id.bytes,
        "origin": origin,
        "origin_assumed": int(assumed),
        "versions": json_text(header.versions),
        "config": json_text(header.config),
        "heard": now,
    }
    connection.execute(attempts.insert(), row)
    if header.rank == 0 and last is None:
        state.describe(header)  # ranks that registered earlier may have known less
    state.started = min(state.started, header.started)
    state.ranks += last is None
    if number >= state.attempts:
        state.findings = None  # they are about the starts before, and may tell a training to stop
        if state.last_time is not None:  # its clock may be behind theirs
            state.last_time = min(state.last_time, header.started)
    state.attempts = max(state.attempts, number + 1)
    state.measurement = None  # each process must announce that it can be measured
    return Attempt(header.rank, number, origin, newest=True)


def _number(connection: Connection, header: wire.AttemptHeader, state: RunState, last: int) -> int:
    """The number of the run's start that an attempt belongs to: one after its rank's ``last``, else a new one.

    The start must have as many ranks and must not have ended before the attempt began. The nearest in time is taken,
    the first of equally near ones. Counting the rank's attempts would not work: some may have left no record.
    """
    table = attempts.c
    # A process that starts before it sees other ranks reports a world size of 1.
    alike: ColumnElement[bool] = true()
    if header.world_size > 1:
        alike = table.world_size.in_([1, header.world_size])
    together = (
        select(table.attempt)
        .where(table.run_id == state.run_id, table.attempt > last, alike)
        .group_by(table.attempt)
        .having(
            or_(
                func.count(table.ended_time) < func.count(),
                func.max(table.ended_time) >= header.started,
            )
        )
        .order_by(func.min(func.abs(table.started - header.started)), table.attempt)
        .limit(1)
    )
    found: int | None = connection.scalar(together)
    return state.attempts if found is None else found


def _origin(connection: Connection, header: wire.AttemptHeader, number: int) -> tuple[int, bool]:
    """The step of an attempt's first update, and whether it is assumed to continue where the last attempts ended.

    Ranks that start together must agree, even if the last records of earlier attempts arrive between their headers. So
    the rank that registers first decides.
    """
    if header.resume_step is not None:
        return header.resume_step, False
    if number == 0:
        return 0, False
    table = attempts.c
    together = connection.scalar(
        select(func.min(table.origin)).where(
            table.run_id == header.run_id.bytes, table.attempt == number, table.origin_assumed == 1
        )
    )
    if together is not None:
        return together, True
    earlier = select(func.max(ledger.c.last_step)).where(
        ledger.c.run_id == header.run_id.bytes, ledger.c.attempt < number
    )
    last = connection.scalar(earlier)
    return (0 if last is None else last + 1), True


def end(connection: Connection, run_id: bytes, attempt: Attempt, how: str, time: int) -> None:
    """Record how an attempt ended. The first report counts, but the process's own replaces `GONE`."""
    table = attempts.c
    earlier = table.ended.is_(None) if how == GONE else or_(table.ended.is_(None), _IS_GONE)
    statement = update(attempts).where(*_this(run_id, attempt), earlier)
    connection.execute(statement.values(ended=how, ended_time=time))


def go_on(connection: Connection, run_id: bytes, attempt: Attempt) -> bool:
    """Withdraw a sender's guess that a process died, since it made more updates. Return whether there was one."""
    statement = update(attempts).where(*_this(run_id, attempt), _IS_GONE)
    return connection.execute(statement.values(ended=None, ended_time=None)).rowcount > 0


def _this(run_id: bytes, attempt: Attempt) -> tuple[ColumnElement[bool], ...]:
    table = attempts.c
    return table.run_id == run_id, table.rank == attempt.rank, table.attempt == attempt.number


def went_on(connection: Connection, run_id: bytes, attempt: Attempt, now: int) -> bool:
    """Record that a process still makes updates a while after a later start of its rank. Return whether this is new.

    Call it when a sender has just seen the process alive. All times are of the server's clock, because the clocks of
    training machines may jump.
    """
    table, later = attempts.c, attempts.alias()
    of_rank = (table.run_id == run_id, table.rank == attempt.rank)
    began = select(func.min(later.c.heard)).where(
        later.c.run_id == run_id,
        later.c.rank == attempt.rank,
        later.c.attempt > attempt.number,
    )
    first = connection.scalar(began)
    if first is None or first > now - BESIDE_US:
        return False
    alone = (table.attempt == attempt.number, table.ended.is_(None), table.rival == 0)
    changed = connection.execute(update(attempts).where(*of_rank, *alone).values(rival=1))
    return changed.rowcount > 0


def state_of_run(connection: Connection, run_id: bytes) -> str:
    """The state of a run, from the newest attempt of each rank: one crash is enough, but all must finish.

    Ranks that the run's newest start no longer has are ignored, because the run continues with fewer.
    """
    # In order of attempt, so the newest of each rank is the one that stays.
    newest = dict(fetch(connection, _ENDED, {"of": run_id}))
    _, ranks = max(world_sizes(connection, run_id).items())
    ended = [how for rank, how in newest.items() if rank < ranks]
    if {"crashed", GONE} & {*ended}:
        return "crashed"
    return "finished" if all(how == "finished" for how in ended) else "running"


def newest_start(connection: Connection, run_id: bytes) -> Start | None:
    """The newest start of a run, None if the run never resumed.

    A start that continues where the others ended undoes nothing before its own first update.
    """
    number, origin, assumed, size, rank = fetch(connection, _NEWEST, {"of": run_id})[0]
    if number == 0:
        return None
    last = dict(fetch(connection, _REACHED, {"of": run_id, "number": number}))
    start = Start(number, origin, max(size, rank + 1), last)
    return start._replace(origin=INTEGER_MAX + 1) if assumed and not start.begun else start


def world_sizes(connection: Connection, run_id: bytes) -> dict[int, int]:
    """The number of ranks of each start of a run. A process that starts before it sees others reports a size of 1."""
    rows = fetch(connection, _STARTS, {"of": run_id})
    return {attempt: max(size, rank + 1) for attempt, _, _, size, rank in rows}
