"""Stores batches that wait together in one transaction: a commit, which waits for the disk, is then paid once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Engine

from ampmon import wire
from ampmon_server.store.engine import engine
from ampmon_server.store.engine.errors import BadBatch, Busy, NotFound, UnknownHeader
from ampmon_server.store.ingest.ingest import Receipt, Sender, ingest
from ampmon_server.store.streams.remembered import Memory, Remembered


Asked: TypeAlias = tuple[wire.Batch, Sender]
Outcome: TypeAlias = Receipt | Exception

_REFUSALS = (BadBatch, UnknownHeader, NotFound)
"""What is wrong with one batch, and no trouble to the others."""


def ingest_together(database: Engine, memory: Memory, asked: Sequence[Asked]) -> list[Outcome]:
    """What came of each batch, in order; on return what is stored is committed.

    A batch that is refused leaves nothing of itself. Raises Busy where none could be stored.
    """
    try:
        return _together(database, memory, asked)
    except Busy:
        raise
    except Exception as error:
        if len(asked) == 1:
            return [error]
        # One of them is more than can be stored: it alone is to hear of it.
        return [_together_or_error(database, memory, each) for each in asked]


def _together_or_error(database: Engine, memory: Memory, asked: Asked) -> Outcome:
    try:
        return ingest_together(database, memory, [asked])[0]
    except Busy as error:
        return error


def _together(database: Engine, memory: Memory, asked: Sequence[Asked]) -> list[Outcome]:
    runs: dict[UUID, Remembered] = {}

    def work(connection: Connection) -> list[Outcome]:
        runs.clear()
        return [_one(connection, memory, runs, each, alone=len(asked) == 1) for each in asked]

    outcomes = engine.write(database, work)
    for run_id, remembered in runs.items():
        memory.put(run_id, remembered)
    return outcomes


def _one(
    connection: Connection,
    memory: Memory,
    runs: dict[UUID, Remembered],
    asked: Asked,
    *,
    alone: bool,
) -> Outcome:
    """Store a batch; ``runs`` are those written in this transaction, with what is remembered of them."""
    batch, sender = asked
    remembered = runs.pop(batch.run_id, None) or memory.take(batch.run_id)
    now = engine.now_us()
    try:
        with nullcontext() if alone else connection.begin_nested():
            receipt = ingest(connection, batch, now, sender, remembered)
    except _REFUSALS as refusal:
        if alone:
            raise
        return refusal
    runs[batch.run_id] = remembered
    return receipt
