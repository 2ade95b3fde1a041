"""Selects the blocks of samples that reach into a range of steps, and describes what a batch changed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Integer, Select, Table, bindparam, func, select


@dataclass(frozen=True, slots=True)
class Change:
    """The updates that a batch added to a stream, from step ``first`` to ``last``.

    Before the batch, the scaler and the stream were rolled up to ``scaler_edge`` and ``stream_edge``. ``redone``: some
    of their steps were done before. ``sampled``: at least one update was sampled. ``begins``: these are the first
    samples of the stream.
    """

    first: int
    last: int
    scaler_edge: int
    stream_edge: int
    redone: bool
    sampled: bool
    begins: bool


@lru_cache
def reading(table: Table, overlaid: bool, cut: bool = False) -> Select[Any]:
    """Select the blocks that reach into ``first`` <= step < ``stop``, of the stream ``number`` of the run ``of``.

    These four are bind parameters. With ``cut``, select only the ``most`` first bytes of each block. In a stream that
    never resumed, no block before the first of these is read. The statement is cached because building it takes longer
    than running it.
    """
    of, earlier = table.c, table.alias().c
    first = bindparam("first", type_=BigInteger)
    data = func.substr(of.data, 1, bindparam("most", type_=Integer)) if cut else of.data
    statement = (
        select(data, of.attempt)
        .where(of.run_id == bindparam("of"), of.stream == bindparam("number"))
        .where(of.first_step < bindparam("stop"), of.last_step >= first)
        .order_by(of.first_step, of.attempt)
    )
    if overlaid:
        return statement
    begins = select(func.max(earlier.first_step)).where(
        earlier.run_id == bindparam("of"),
        earlier.stream == bindparam("number"),
        earlier.first_step <= first,
    )
    return statement.where(of.first_step >= func.coalesce(begins.scalar_subquery(), 0))


def next_step(
    connection: Connection, table: Table, run_id: bytes, streams: Sequence[int], step: int
) -> int | None:
    """The first step at or after ``step`` at which one of the ``streams`` may have a sample in ``table``."""
    of = table.c
    found: int | None = connection.scalar(
        select(func.min(of.first_step)).where(
            of.run_id == run_id, of.stream.in_(streams), of.last_step >= step
        )
    )
    return None if found is None else max(found, step)
