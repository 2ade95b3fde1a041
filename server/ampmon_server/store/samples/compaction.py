"""Finds the blocks of an attempt that new samples are packed together with, so that few small ones are ever held.

Like a binary counter: samples that come one at a time are packed with the block before them while that is no larger, so
that of n of them at most log2(32) blocks are not full, and none is packed anew more than log2(32) times. Knows rows of
blocks and not what is in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Delete, Select, Table, and_, bindparam, delete, select

from ampmon_server.store.engine.engine import fetch, insert_rows


SAMPLES_MAX = 32
"""A block is unpacked whole to read one of its samples."""

_AT_ONCE = 8
"""Blocks looked at by one statement: more than there are small ones, but where samples came out of order."""

Place: TypeAlias = tuple[bytes, int, int]
"""run_id, stream and attempt: their blocks do not overlap one another."""

Packed: TypeAlias = tuple[int, int, bytes, int]
"""A block: its first and its last step, what is packed, and how many samples."""


def take(
    connection: Connection, table: Table, place: Place, first: int, last: int, samples: int
) -> list[bytes]:
    """Take out the blocks that new samples of steps ``first`` to ``last`` are to be packed with, in order of step.

    Those whose steps they overlap are among them, so that the blocks of an attempt never overlap.
    """
    wanted = _wanted(connection, table, place, (first, last, samples))
    if not wanted:
        return []
    ask, of = _statements(table), {**_bound(place), "wanted": wanted}
    data = [row[0] for row in fetch(connection, ask.data, of)]
    connection.execute(ask.gone, of)
    return data


def put(connection: Connection, table: Table, place: Place, blocks: Sequence[Packed]) -> None:
    """Store blocks."""
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
    """The first steps of those blocks."""
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
    """First step, last step and samples of the blocks that begin at or before ``last``, the newest first."""
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
    """Of one table: what is in some blocks, those blocks gone, and the blocks backwards from a step."""

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
