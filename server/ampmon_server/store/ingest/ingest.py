"""One batch, one transaction: all of it is stored, once, or none of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from ampmon import wire
from ampmon_server.store.alerts import judgements
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.ingest.writing import BatchWriter
from ampmon_server.store.streams import attempts
from ampmon_server.store.streams import state as run_state
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.batch import StreamBatch, divide
from ampmon_server.store.streams.ledger import LedgerView
from ampmon_server.store.streams.remembered import Remembered
from ampmon_server.store.streams.roster import Roster
from ampmon_server.store.streams.state import RunState
from ampmon_server.store.updates import durability


ENDS = {"finish": "finished", "exception": "crashed"}
"""Events with which a process says itself how it ended."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What to answer, and whether there is something new to announce."""

    ack: wire.Ack
    changed: bool = False
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a batch. ``owner``: of a run that begins with it; None for whom its header names.

    It may write its owner's runs, or every owner's where that is None or with ``admin``. ``projects`` are those whose
    runs it may write; None for all.
    """

    owner: str | None = None
    projects: Collection[str] | None = None
    admin: bool = False

    def may_write(self, state: RunState) -> bool:
        """Whether its batches are taken for a run."""
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
    """Store a batch within the connection's transaction; records that are held already change nothing.

    ``remembered`` is what is known of the run from batches before, and afterwards from this one too.
    Raises BadBatch, HeaderMissing, or NotFound where the sender may not write the run: the transaction is then to be
    rolled back.
    """
    shares = divide(batch)
    state = run_state.lock(connection, batch.run_id)
    if state is None:
        state = run_state.begin(connection, attempts.header_of(batch), sender.owner)
    if state.deleted:
        # Acknowledged, so that a sender lets go of it, and not stored: what is deleted stays deleted.
        acked = {name: share.seqs[-1] for name, share in shares.items()}
        return Receipt(wire.Ack(acked=acked, version=state.version))
    _check(state, batch, sender)
    remembered = (remembered or Remembered()).at(state.version)
    attempt, new = attempts.resolve(connection, batch, state, now, remembered)
    _check(state, batch, sender)  # a run's first start may have named another
    before = replace(state)
    roster = Roster(connection, state, attempt, remembered)
    described = roster.introduce(batch, shares)
    acked, stored = _store(BatchWriter(connection, state, roster, attempt), shares, remembered)
    if stored and (attempt.newest or state.last_time is None):
        # By order, and not the greatest: a clock that was far ahead for a while must not stay the newest.
        state.last_time = max(share.records[-1].time for share in stored)
    if _ends(connection, batch, state, attempt, stored, now) or new:
        _judge(connection, state, now)
    if batch.alive and not attempt.newest and _trains(stored):
        state.rivals += attempts.went_on(connection, state.run_id, attempt, now)
    if (new and state.window_ms is not None) or _says(stored, durability.KIND):
        state.window_ms, state.window_why = durability.window(connection, state.run_id)
    changed = bool(new or described or stored or state != before)
    if changed:
        state.advance(now)
        run_state.save(connection, state)
    remembered.version = state.version
    return Receipt(_ack(acked, state), changed, state.last_step)


def _check(state: RunState, batch: wire.Batch, sender: Sender) -> None:
    """Raises NotFound, in the same words whether such a run is there or would have been new.

    That an id is taken, or was, cannot be hidden from who may send: a free one is theirs with a header, and what is
    deleted has no project any more.
    """
    if not sender.may_write(state):
        raise NotFound(f"There is no run {batch.run_id} of this token's owner and projects.")


def _store(
    writer: BatchWriter, shares: dict[str, StreamBatch], remembered: Remembered
) -> tuple[dict[str, int], list[StreamBatch]]:
    """The last seq held of each stream, and what was new."""
    acked, stored = {}, []
    for name, share in shares.items():
        stream = writer.roster.mine(name)
        of = (writer.state.run_id, stream.number, writer.attempt)
        page = LedgerView(writer.connection, *of, share, remembered)
        unknown = page.unknown(share)
        if unknown.records:
            held = page.last
            writer.state.lost += page.add(unknown)
            writer.write(unknown, held)
            stored.append(unknown)
        acked[name] = page.last
    return acked, stored


def _trains(stored: list[StreamBatch]) -> bool:
    """Whether there is a new update."""
    return any(type(record) is wire.Update for share in stored for record in share.records)


def _says(stored: list[StreamBatch], kind: str) -> bool:
    """Whether there is a new event of the process itself that is of this kind."""
    return any(
        type(record) is wire.Event and record.kind == kind
        for share in stored
        if not share.name
        for record in share.records
    )


def _ack(acked: dict[str, int], state: RunState) -> wire.Ack:
    return wire.Ack(
        acked=acked,
        version=state.version,
        findings=judgements.listed(state.findings),
        request=state.measurement or None,
    )


def _ends(
    connection: Connection,
    batch: wire.Batch,
    state: RunState,
    attempt: Attempt,
    stored: list[StreamBatch],
    now: int,
) -> bool:
    """Note how the attempt ended; whether it did."""
    ended = batch.ended is not None
    for share in stored:
        for record in share.records:
            if type(record) is wire.Event and not record.stream and record.kind in ENDS:
                attempts.end(connection, state.run_id, attempt, ENDS[record.kind], record.time)
                ended = True
    if batch.ended is not None:
        # As nearly as the training's own clock says: it is compared with when other processes began.
        died = now if state.last_time is None else state.last_time
        attempts.end(connection, state.run_id, attempt, batch.ended, died)
    return ended


def _judge(connection: Connection, state: RunState, now: int) -> None:
    """Note what its attempts make of the run."""
    before, state.state = state.state, attempts.state_of_run(connection, state.run_id)
    if state.state != before:
        state.alerts_due = now  # nothing more may arrive, and this process may end before it looks
