"""Stores several waiting batches in one transaction, so that they share the cost of one commit to disk."""

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
"""Errors of one batch that do not affect the others."""


def ingest_together(database: Engine, memory: Memory, asked: Sequence[Asked]) -> list[Outcome]:
    """Store batches and return the outcome of each, in order. On return, all stored batches are committed.

    Nothing of a rejected batch is stored. Raises Busy if no batch could be stored.
    """
    try:
        return _together(database, memory, asked)
    except Busy:
        raise
    except Exception as error:
        if len(asked) == 1:
            return [error]
        # One of the batches cannot be stored. Store each alone, so that only its sender gets the error.
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
    """Store a batch. ``runs`` caches what is remembered of the runs written in this transaction."""
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
