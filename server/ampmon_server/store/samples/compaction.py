"""Finds the blocks of an attempt to pack new samples together with, so that there are never many small blocks.

It works like a binary counter: new samples are packed with the block before them while that block is no larger. If
samples arrive one at a time, at most log2(32) blocks are not full, and no sample is repacked more than log2(32) times.
This module handles the rows of blocks, not their contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Delete, Select, Table, and_, bindparam, delete, select

from ampmon_server.store.engine.engine import fetch, insert_rows


SAMPLES_MAX = 32
"""The most samples in a block. Reading one of them unpacks the whole block."""

_AT_ONCE = 8
"""Blocks read by one statement: more than there are small ones, unless samples arrived out of order."""

Place: TypeAlias = tuple[bytes, int, int]
"""run_id, stream and attempt. The blocks of one place do not overlap."""

Packed: TypeAlias = tuple[int, int, bytes, int]
"""A block: first step, last step, packed data and number of samples."""


def take(
    connection: Connection, table: Table, place: Place, first: int, last: int, samples: int
) -> list[bytes]:
    """Remove and return the blocks to pack with new samples of steps ``first`` to ``last``, in order of step.

    All blocks that overlap these steps are included, so that the blocks of an attempt never overlap.
    """
    wanted = _wanted(connection, table, place, (first, last, samples))
    if not wanted:
        return []
    ask, of = _statements(table), {**_bound(place), "wanted": wanted}
    data = [row[0] for row in fetch(connection, ask.data, of)]
    connection.execute(ask.gone, of)
    return data


def put(connection: Connection, table: Table, place: Place, blocks: Sequence[Packed]) -> None:
    run_id, stream, attempt = place
    insert_rows(
        connection,
        table,
        [
            (run_id, stream, first, attempt, last, data, samples)
            for first, last, data, samples in blocks
        ],
    )


def _wanted(
    connection: Connection, table: Table, place: Place, new: tuple[int, int, int]
) -> list[int]:
    """The first steps of the blocks that `take` removes."""
    first, last, samples = new
    wanted: list[int] = []
    for its_first, its_last, its_samples in _backwards(connection, table, place, last):
        overlaps = its_last >= first
        if not overlaps and (its_samples > samples or its_samples + samples > SAMPLES_MAX):
            break
        wanted.append(its_first)
        samples += its_samples
    return wanted


def _backwards(
    connection: Connection, table: Table, place: Place, last: int
) -> Iterator[tuple[int, int, int]]:
    """First step, last step and number of samples of the blocks that begin at or before ``last``, newest first."""
    while True:
        some = fetch(connection, _statements(table).backwards, {**_bound(place), "last": last})
        yield from some
        if len(some) < _AT_ONCE:
            return
        last = some[-1][0] - 1


def _bound(place: Place) -> dict[str, Any]:
    run_id, stream, attempt = place
    return {"of": run_id, "stream": stream, "attempt": attempt}


class _Statements(NamedTuple):
    """Statements of one table: read the data of blocks, delete blocks, and list blocks backwards from a step."""

    data: Select[Any]
    gone: Delete
    backwards: Select[Any]


@lru_cache
def _statements(table: Table) -> _Statements:
    of = table.c
    place = and_(
        of.run_id == bindparam("of"),
        of.stream == bindparam("stream"),
        of.attempt == bindparam("attempt"),
    )
    wanted = and_(place, of.first_step.in_(bindparam("wanted", expanding=True)))
    return _Statements(
        select(of.data).where(wanted).order_by(of.first_step),
        delete(table).where(wanted),
        select(of.first_step, of.last_step, of.samples)
        .where(place, of.first_step <= bindparam("last"))
        .order_by(of.first_step.desc())
        .limit(_AT_ONCE),
    )
