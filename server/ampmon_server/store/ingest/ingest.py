"""Stores batches: each as a whole, once, or not at all. Several that wait share the cost of one commit to disk."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import msgspec
import orjson
from sqlalchemy import Connection, Engine

from ampmon import wire
from ampmon_server.store.engine import engine, postgresql
from ampmon_server.store.engine.errors import Busy, NotFound
from ampmon_server.store.ingest.commit import BatchWriter
from ampmon_server.store.ingest.ledger import LedgerView
from ampmon_server.store.ingest.plan import StreamBatch, divide
from ampmon_server.store.ingest.roster import Remembered, Roster
from ampmon_server.store.samples import samples
from ampmon_server.store.streams import attempts
from ampmon_server.store.streams import state as run_state
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.state import RunState
from ampmon_server.store.updates.events import SPOOL, loss_window


ENDS = {"finish": "finished", "exception": "crashed"}
"""Events in which a process itself reports how it ended."""

DELETED = wire.Finding(
    rule="deleted",
    severity="critical",
    title="The run was deleted on the server, which stores none of its records. Start with another run id to record",
    explanation="A run that was deleted stays deleted, also if its run id or launch id is used again.",
)
"""What a process of a deleted run is told. It may have just been started."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The acknowledgement to send, and whether the run changed."""

    ack: wire.Ack
    changed: bool = False
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a batch. A run that begins with the batch gets this ``owner``, or the header's if it is None.

    A sender may write the runs of its owner, or of all owners with ``admin`` or if ``owner`` is None. ``projects``
    limits that to runs of these projects; None is all.
    """

    owner: str | None = None
    projects: Collection[str] | None = None
    admin: bool = False

    def may_write(self, state: RunState) -> bool:
        owns = self.owner is None or self.admin or self.owner == state.owner
        return owns and (self.projects is None or state.project in self.projects)


ANYONE = Sender()


def ingest(
    connection: Connection,
    batch: wire.Batch,
    now: int,
    sender: Sender = ANYONE,
    remembered: Remembered | None = None,
) -> Receipt:
    """Store a batch within the connection's transaction. Records that are already stored change nothing.

    ``remembered`` caches what earlier batches left of the run, and is updated. Raises BadBatch, UnknownHeader, or
    NotFound if the sender may not write the run. The caller must then roll back the transaction.
    """
    shares = divide(batch)
    state = run_state.lock(connection, batch.run_id)
    if state is None:
        state = run_state.begin(connection, attempts.header_of(batch), sender.owner)
    if state.deleted:
        # Acknowledge without storing, so that the sender drops its records and the run stays deleted.
        acked = {name: share.seqs[-1] for name, share in shares.items()}
        findings = (msgspec.structs.asdict(DELETED),)
        return Receipt(wire.Ack(acked=acked, version=state.version, findings=findings))
    _check(state, batch, sender)
    # Only under the lock on the run's row: before it, another server could still raise the version.
    remembered = (remembered or Remembered()).at(state.version, state.changed)
    attempt, new, wider = attempts.resolve(connection, batch, state, now, remembered.attempts)
    _check(state, batch, sender)  # the first header of rank 0 may have changed the project
    before = run_state.row_of(state)
    roster = Roster(connection, state, attempt, remembered)
    described = roster.introduce(batch, shares)
    _regroup(connection, roster, wider=wider)
    acked, stored = _store(BatchWriter(connection, state, roster, attempt), shares, remembered)
    # Late records of an earlier start do not tell when the run was last active.
    if stored and (attempt.newest or state.last_time is None):
        state.last_time = _last_time(state, attempt, stored)
    trains = any(True for _ in _updates(stored))
    events = _events_of_process(stored)
    if _ends(connection, batch, state, attempt, events, now, trains=trains) or new:
        _judge(connection, state, now)
    if batch.alive and not attempt.newest and trains:
        state.rivals += attempts.went_on(connection, state.run_id, attempt, now)
    reported = any(event.kind == SPOOL for event in events)
    # A new attempt replaces the one before it on its rank, and with it that one's loss window.
    if reported or (new and state.window_ms is not None):
        state.window_ms, state.window_why = loss_window(connection, state.run_id)
    changed = bool(new or described or stored or run_state.row_of(state) != before)
    if changed:
        state.advance(now)
        run_state.save(connection, state)
    remembered.version, remembered.changed = state.version, state.changed
    return Receipt(_ack(acked, state), changed, state.last_step)


def _check(state: RunState, batch: wire.Batch, sender: Sender) -> None:
    """Raise NotFound, with the same message whether the run exists or would be new, unless the sender may write it.

    A sender can still find out that an id is or was taken: a free id becomes its run, and a deleted run has no owner
    or project left to check.
    """
    if not sender.may_write(state):
        raise NotFound(
            f"There is no run {batch.run_id} of this token's owner and projects. For a new run, set AMPMON_PROJECT to "
            "one of those projects."
        )


def _regroup(connection: Connection, roster: Roster, *, wider: bool) -> None:
    """Rebuild the samples that have more parts since this batch. ``wider``: so has its start of the run."""
    for name in roster.scalers if wider else roster.regrouped:
        scaler = roster.scaler(name)
        if scaler.is_sharded:
            samples.redo(connection, scaler)


def _store(
    writer: BatchWriter, shares: dict[str, StreamBatch], remembered: Remembered
) -> tuple[dict[str, int], list[StreamBatch]]:
    """Store the new records. Return the last seq stored of each stream, and what was new."""
    acked, stored = {}, []
    for name, share in shares.items():
        stream = writer.roster.mine(name)
        page = LedgerView(writer.connection, stream, writer.attempt, share, remembered)
        unknown = page.unknown(share)
        if unknown.records:
            held = page.last
            # Before the rows: cells leave out what a later attempt repeats, by the ledger.
            writer.state.lost += page.add(unknown)
            writer.write(unknown, held)
            stored.append(unknown)
        acked[name] = page.last
    return acked, stored


def _last_time(state: RunState, attempt: Attempt, stored: list[StreamBatch]) -> int:
    """The time of the run's last record in order, after ``stored``.

    It may be less than before: a clock that ran ahead for a while must not count forever. But it is not that of a rank
    that delivers earlier steps than others have made.
    """
    time = max(share.records[-1].time for share in stored)
    if state.last_time is None or time >= state.last_time or state.ranks == 1:
        return time
    last = max((update.ordinal for update in _updates(stored)), default=-1)
    leads = attempt.origin + last >= (state.last_step or 0)
    return time if leads else state.last_time


def _updates(stored: list[StreamBatch]) -> Iterator[wire.Update]:
    for share in stored:
        yield from (record for record in share.records if type(record) is wire.Update)


def _events_of_process(stored: list[StreamBatch]) -> list[wire.Event]:
    """New events of the process itself, whose stream name is empty."""
    own = (share.records for share in stored if not share.name)
    return [record for records in own for record in records if type(record) is wire.Event]


def _ack(acked: dict[str, int], state: RunState) -> wire.Ack:
    # None if the run was never judged.
    findings = None if state.findings is None else tuple(orjson.loads(state.findings))
    request = state.measurement or None
    return wire.Ack(acked=acked, version=state.version, findings=findings, request=request)


def _ends(
    connection: Connection,
    batch: wire.Batch,
    state: RunState,
    attempt: Attempt,
    events: list[wire.Event],
    now: int,
    *,
    trains: bool,
) -> bool:
    """Record how the attempt ended, or that it did not after all. Return whether either is so."""
    ended = batch.ended is not None
    if state.state == "crashed" and trains:
        ended |= attempts.go_on(connection, state.run_id, attempt)
    for event in events:
        if event.kind in ENDS:
            how = ENDS[event.kind]
            attempts.end(connection, state.run_id, attempt, how, event.time)
            ended = True
    if batch.ended is not None:
        # Prefer the trainer's clock: the time is compared with the start times of other processes.
        died = now if state.last_time is None else state.last_time
        attempts.end(connection, state.run_id, attempt, attempts.GONE, died)
    return ended


def _judge(connection: Connection, state: RunState, now: int) -> None:
    """Update the run's status from its attempts."""
    before, state.state = state.state, attempts.state_of_run(connection, state.run_id)
    if state.state != before:
        # Store that the run is due: no more records may arrive, and this process may end before it judges the run.
        state.alerts_due = now


WEIGHT_MAX = 16_384
"""The limit over all cached runs, in units of about 4 kB: a stream or the header of an attempt takes one unit."""


class Memory:
    """Cache of the runs that sent something last. Thread-safe.

    A run is taken out for a transaction and put back after the commit. If the transaction fails, the cached state is
    dropped with its changes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: OrderedDict[UUID, tuple[Remembered, int]] = OrderedDict()
        """Each run with its weight, which takes a while to compute for many streams."""
        self._weight = 0
        self._turns = [threading.Lock() for _ in range(64)]

    @contextmanager
    def turn(self, run_id: UUID) -> Iterator[None]:
        """Let one thread at a time write a run, so that each finds it cached. Raises Busy as a locked row does."""
        lock = self._turns[run_id.int % len(self._turns)]
        if not lock.acquire(timeout=postgresql.LOCK_TIMEOUT_MS / 1e3):
            raise Busy("Other batches of the run take too long.")
        try:
            yield
        finally:
            lock.release()

    def take(self, run_id: UUID) -> Remembered:
        """Remove and return the cached state of a run; an empty state if it is not cached."""
        with self._lock:
            found, weight = self._runs.pop(run_id, (Remembered(), 0))
            self._weight -= weight
            return found

    def put(self, run_id: UUID, remembered: Remembered) -> None:
        """Cache the state of a run, whose version must be committed."""
        weight = remembered.weight
        if weight > WEIGHT_MAX:
            remembered.tails.clear()  # they weigh the most, and save the least
            weight = remembered.weight
        with self._lock:
            self.take(run_id)
            self._runs[run_id] = remembered, weight
            self._weight += weight
            while self._weight > WEIGHT_MAX:
                self.take(next(iter(self._runs)))


Asked: TypeAlias = tuple[wire.Batch, Sender]
Outcome: TypeAlias = Receipt | Exception


def ingest_together(database: Engine, memory: Memory, asked: Sequence[Asked]) -> list[Outcome]:
    """Store batches and return the outcome of each, in order. On return, all stored batches are committed.

    Nothing of a rejected batch is stored.
    """
    try:
        return _together(database, memory, asked)
    except Exception as error:
        # If it is busy, all of them are refused, and to try fewer would only take longer.
        if len(asked) == 1 or isinstance(error, Busy):
            return [error] * len(asked)
    # One of them cannot be stored, which is rare. Try each half again, so that only its sender gets the error. SQLite
    # could not roll back to a savepoint where pages are damaged.
    half = len(asked) // 2
    parts = asked[:half], asked[half:]
    return [outcome for part in parts for outcome in ingest_together(database, memory, part)]


def _together(database: Engine, memory: Memory, asked: Sequence[Asked]) -> list[Outcome]:
    runs: dict[UUID, Remembered] = {}

    def work(connection: Connection) -> list[Outcome]:
        # After a conflict `work` runs again. What the first try left here was rolled back, but its
        # version may be the one that another server has written meanwhile.
        runs.clear()
        outcomes: list[Outcome] = []
        for batch, sender in asked:
            remembered = runs.get(batch.run_id) or memory.take(batch.run_id)
            outcomes.append(ingest(connection, batch, engine.now_us(), sender, remembered))
            runs[batch.run_id] = remembered
        return outcomes

    # A server with several threads stores one batch at a time.
    with memory.turn(asked[0][0].run_id):
        outcomes = engine.write(database, work)
        for run_id, remembered in runs.items():
            memory.put(run_id, remembered)
    return outcomes
