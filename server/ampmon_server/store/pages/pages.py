"""Rows in pages: what a page is, how rows come into it, and how they are read again.

A page holds the rows of 256 consecutive steps, of all attempts, in order of step and attempt. It is a fixed range of
steps and not a number of rows, so it does not depend on the order in which rows arrive, a resend changes nothing, and
what a resumed attempt did again lies beside what it replaces. The newest page of a series still grows: cells are made
of the pages before it (`store.updates.rollups`, `store.updates.scalars`), and it is never pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sqlalchemy import BindParameter, Connection, Select, Table, bindparam, select

from ampmon_server.model.aggregates.merging import starts_of
from ampmon_server.store.engine.engine import fetch, insert_rows
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.packing import compress, decompress
from ampmon_server.store.pages.pyramid import Key, bound, key_is
from ampmon_server.store.pages.ranges import Range


PAGE_BITS = 8
"""A page holds the rows of ``2**8`` steps."""

VERSION = b"\x01"
"""Stands before what is packed. A migration packs again what an older version packed."""

AT_ONCE = 256
"""Pages that are read with one statement."""

STEPS_AT_ONCE = 2**14
"""Steps whose rows are in memory where many cells are made anew."""

Rows: TypeAlias = npt.NDArray[Any]
"""A structured array [n] of int64 and float64 fields, `step` and `attempt` among them, in order of both."""


def edge_of(last_step: int | None) -> int:
    """The first step of the newest page of a series: cells are made of what is before it."""
    return (last_step or 0) >> PAGE_BITS << PAGE_BITS


def unsealed(first: int, last: int, before: int, after: int, rows_from: int = 0) -> Range | None:
    """The steps whose cells are to be made anew once rows from step ``first`` to ``last`` are stored; None for none.

    They are those of these rows, and of pages that still grew before: the series' edge was ``before`` and is ``after``.
    Steps before ``rows_from``, whose rows are no longer all held, stay as they are.
    """
    low = max(min(first, before), rows_from)
    high = after - 1 if after > before else min(last, before - 1)
    return (low, high) if low <= high else None


def pack(rows: Rows) -> bytes:
    """Rows as bytes: each field as differences from row to row, byte plane by byte plane, compressed."""
    words = np.ascontiguousarray(rows.view("<i8").reshape(len(rows), -1).T)
    differences = np.diff(words, axis=1, prepend=0)  # wraps around, and back when it is read
    zigzag = (differences << 1) ^ (differences >> 63)
    planes = zigzag.view(np.uint8).reshape(*words.shape, 8).swapaxes(1, 2)
    return VERSION + compress(planes.tobytes())


def unpack(data: bytes, dtype: np.dtype[Any]) -> Rows:
    """What `pack` was given. Raises Damaged."""
    if data[:1] != VERSION:
        raise Damaged(f"a page of rows has version {data[:1].hex()}: this is {VERSION.hex()}")
    try:
        planes = np.frombuffer(decompress(data[1:]), np.uint8).reshape(dtype.itemsize // 8, 8, -1)
    except ValueError as error:
        raise Damaged(f"a page of rows is damaged: {error}") from error
    zigzag = np.ascontiguousarray(planes.swapaxes(1, 2)).view("<u8")[:, :, 0]
    differences = (zigzag >> 1).view("<i8") ^ -(zigzag & 1).view("<i8")
    return np.ascontiguousarray(differences.cumsum(axis=1).T).view(dtype)[:, 0]


def joined(parts: Sequence[Rows], dtype: np.dtype[Any]) -> Rows:
    """Rows one after another. `np.concatenate` of structured arrays would compare their dtypes field by field."""
    if len(parts) == 1:
        return parts[0]
    words = [np.zeros(0, "<i8"), *(part.view("<i8") for part in parts)]
    return np.concatenate(words).view(dtype)


def merged(held: Rows, new: Rows, *, replace: bool = False) -> Rows:
    """Rows in order of step and attempt. Copies.

    Of several with the same the first stays, what was ``held`` before what is ``new``, or the last where they
    ``replace`` one another.
    """
    both = joined([held, new], held.dtype)
    if _rises(both):
        return both
    both = both[::-1] if replace else both
    both = both[np.lexsort((both["attempt"], both["step"]))]  # stable
    same = (np.diff(both["step"]) == 0) & (np.diff(both["attempt"]) == 0)
    return both[np.append(True, ~same)] if same.any() else both


def _rises(rows: Rows) -> bool:
    steps = np.diff(rows["step"])
    return bool(((steps > 0) | ((steps == 0) & (np.diff(rows["attempt"]) > 0))).all())


def last_of_each_step(rows: Rows) -> Rows:
    """Each step once: of several attempts the latest."""
    again = rows["step"][1:] == rows["step"][:-1]
    return rows[np.append(~again, True)] if again.any() else rows


def by_page(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Rows in order of step, by the number of their page."""
    numbers = rows["step"] >> PAGE_BITS
    starts = starts_of(numbers)
    if len(rows):
        yield from zip(numbers[starts].tolist(), np.split(rows, starts[1:]), strict=True)


class NewestPage(NamedTuple):
    """The newest page of a series: its number, -1 where there is none, and its rows."""

    number: int
    rows: Rows

    @property
    def edge(self) -> int:
        """Its first step: cells are made of what is before it."""
        return max(self.number, 0) << PAGE_BITS


Tails: TypeAlias = dict[Key, NewestPage]
"""The newest pages that are known, by series."""


@dataclass(frozen=True, slots=True)
class PagedSeries:
    """One kind of series in pages of one table; ``summarize`` gives the values of its columns before `data`.

    ``replaces``: of several rows of one step and attempt the last is kept, and not the first.
    """

    table: Table
    dtype: np.dtype[Any]
    summarize: Callable[[Rows], tuple[Any, ...]]
    replaces: bool = False

    def row(self, key: Key, number: int, rows: Rows) -> tuple[Any, ...]:
        """A page as a row of the table."""
        return (*key, number, *self.summarize(rows), pack(rows))

    def put(
        self, connection: Connection, new: Mapping[Key, Rows], tails: Tails | None = None
    ) -> int:
        """Add rows, in order of step, to each of some series of a run; how many of the steps were not held yet.

        ``tails`` are not read again, and are the newest pages afterwards. Raises Damaged.
        """
        tails = {} if tails is None else tails
        pages, added = [], 0
        for key, rows in new.items():
            held = self._held(connection, key, rows, tails)
            for number, some in by_page(rows):
                before = held.get(number, rows[:0])
                after = merged(before, some, replace=self.replaces)
                added += _steps(after) - _steps(before)
                pages.append(self.row(key, number, after))
                if number >= tails[key].number:
                    tails[key] = NewestPage(number, after)
        insert_rows(connection, self.table, pages, replace=True)
        return added

    def _held(self, connection: Connection, key: Key, rows: Rows, tails: Tails) -> dict[int, Rows]:
        """The rows of the pages, by number, to which some are to be added."""
        tail = self.tail(connection, key, tails)
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        before = (
            self.pages(connection, key, first, min(last, tail.edge - 1))
            if first < tail.edge
            else rows[:0]
        )
        return {**dict(by_page(before)), tail.number: tail.rows}

    def tail(self, connection: Connection, key: Key, tails: Tails) -> NewestPage:
        """The newest page of a series, which from now on is among those that are known. Raises Damaged."""
        if key not in tails:
            found = fetch(connection, _newest(self.table), bound(self.table, key))
            tails[key] = (
                NewestPage(found[0][0], self.opened(*found[0]))
                if found
                else NewestPage(-1, np.zeros(0, self.dtype))
            )
        return tails[key]

    def read(self, connection: Connection, key: Key, first: int, last: int) -> Rows:
        """The rows of all attempts from step ``first`` to ``last``, both included. Raises Damaged."""
        rows = self.pages(connection, key, first, last)
        left, right = np.searchsorted(rows["step"], [first, last + 1])
        return rows[left:right]

    def pages(self, connection: Connection, key: Key, first: int, last: int) -> Rows:
        """The rows of all pages that may have one of these steps. Raises Damaged."""
        wanted = {**bound(self.table, key), "low": first >> PAGE_BITS, "high": last >> PAGE_BITS}
        found = fetch(connection, _reading(self.table), wanted)
        return joined([self.opened(number, data) for number, data in found], self.dtype)

    def opened(self, number: int, data: bytes) -> Rows:
        """The rows of a page. Raises Damaged, also where they are of another page."""
        rows = unpack(data, self.dtype)
        if not len(rows) or {int(rows["step"][end]) >> PAGE_BITS for end in (0, -1)} != {number}:
            raise Damaged("a page of rows holds other steps than its key says")
        return rows

    def walk(
        self, connection: Connection, key: Key, first: int = 0, pages: int = AT_ONCE
    ) -> Iterator[Rows]:
        """The rows of all attempts from step ``first`` on, page by page, read some ``pages`` at a time.

        Raises Damaged at the page that is.
        """
        wanted = {**bound(self.table, key), "low": first >> PAGE_BITS, "most": pages}
        while found := fetch(connection, _walking(self.table), wanted):
            for number, data in found:
                rows = self.opened(number, data)
                rows = rows[np.searchsorted(rows["step"], first) :]
                if len(rows):
                    yield rows
            wanted["low"] = found[-1][0] + 1

    def following(self, connection: Connection, key: Key, step: int) -> int | None:
        """The number of the first page that may have a row at a step or after it."""
        return self._number(connection, key, step >> PAGE_BITS, forward=True)

    def preceding(self, connection: Connection, key: Key, step: int) -> int | None:
        """The number of the last page that may have a row before a step."""
        return self._number(connection, key, (step - 1) >> PAGE_BITS, forward=False)

    def _number(self, connection: Connection, key: Key, of: int, *, forward: bool) -> int | None:
        found = fetch(
            connection, _numbering(self.table, forward), {**bound(self.table, key), "number": of}
        )
        return found[0][0] if found else None


def _steps(rows: Rows) -> int:
    """How many steps rows in their order have."""
    return len(rows) and 1 + int(np.count_nonzero(np.diff(rows["step"])))


@lru_cache
def _reading(table: Table) -> Select[Any]:
    within = table.c.bucket.between(bindparam("low"), bindparam("high"))
    return (
        select(table.c.bucket, table.c.data).where(key_is(table), within).order_by(table.c.bucket)
    )


@lru_cache
def _walking(table: Table) -> Select[Any]:
    of = table.c
    statement = select(of.bucket, of.data).where(key_is(table), of.bucket >= bindparam("low"))
    return statement.order_by(of.bucket).limit(bindparam("most"))


@lru_cache
def _newest(table: Table) -> Select[Any]:
    of = table.c
    return select(of.bucket, of.data).where(key_is(table)).order_by(of.bucket.desc()).limit(1)


@lru_cache
def _numbering(table: Table, forward: bool) -> Select[Any]:
    of = table.c.bucket
    number: BindParameter[int] = bindparam("number")
    which, order = (of >= number, of) if forward else (of <= number, of.desc())
    return select(of).where(key_is(table), which).order_by(order).limit(1)
