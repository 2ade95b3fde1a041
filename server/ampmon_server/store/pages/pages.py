"""Stores rows in pages: the format of a page, and how rows are added and read.

A page holds the rows of 256 consecutive steps, of all attempts, in order of step and attempt. It covers a fixed range
of steps, not a fixed number of rows. So the order in which rows arrive does not matter, a resend changes nothing, and
steps that a resumed attempt repeats lie beside the rows that they replace. The newest page of a series still grows.
Cells are built only from earlier pages (`store.updates.updates`, `store.updates.scalars`). It is never pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Select, Table, bindparam, select

from ampmon_server.model.aggregates.merging import joined, starts_of
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import Key, bound, fetch, insert_rows, key_is
from ampmon_server.store.pages.packing import compress, decompress
from ampmon_server.store.pages.ranges import Range


PAGE_BITS = 8
"""A page holds the rows of ``2**8`` steps."""

AT_ONCE, ALL = 256, 2**31 - 1
"""Pages read by one statement, and more than there are of any series."""

Rows: TypeAlias = npt.NDArray[Any]
"""A structured array [n] of int64 and float64 fields, including `step` and `attempt`, in order of both."""


def edge_of(last_step: int | None) -> int:
    """The first step of the newest page of a series. Cells are built only from rows before it."""
    return (last_step or 0) >> PAGE_BITS << PAGE_BITS


def pack(rows: Rows) -> bytes:
    """Pack rows: the differences from row to row in each field, split into byte planes and compressed."""
    # The bits of floats are taken for integers: a scale that holds has differences of zero.
    words = np.ascontiguousarray(rows.view("<i8").reshape(len(rows), -1).T)
    differences = words.copy()
    differences[:, 1:] -= words[:, :-1]  # may overflow; `unpack` wraps it back
    zigzag = (differences << 1) ^ (differences >> 63)
    planes = zigzag.view(np.uint8).reshape(*words.shape, 8).swapaxes(1, 2)
    return compress(planes.tobytes())


def unpack(data: bytes, dtype: np.dtype[Any]) -> Rows:
    """Unpack what `pack` returned. Raises Damaged."""
    try:
        packed = np.frombuffer(decompress(data), np.uint8)
        planes = packed.reshape(dtype.itemsize // 8, 8, -1)
    except ValueError as error:
        raise Damaged(f"a page of rows is damaged: {error}") from error
    zigzag = np.ascontiguousarray(planes.swapaxes(1, 2)).view("<u8")[:, :, 0]
    differences = (zigzag >> 1).view("<i8") ^ -(zigzag & 1).view("<i8")
    return np.ascontiguousarray(differences.cumsum(axis=1).T).view(dtype)[:, 0]


def merged(held: Rows, new: Rows, *, replace: bool = False) -> Rows:
    """Merge rows in order of step and attempt, as a copy.

    Of several rows with the same step and attempt the first stays, ``held`` before ``new``; with ``replace``, the last.
    """
    both = joined([held, new])
    if _rises(both):
        return both
    # Reversed, the last of equal rows comes first, and the first one is kept below.
    both = both[::-1] if replace else both
    both = both[np.lexsort((both["attempt"], both["step"]))]  # stable
    same = (np.diff(both["step"]) == 0) & (np.diff(both["attempt"]) == 0)
    return both[np.append(True, ~same)] if same.any() else both


def _rises(rows: Rows) -> bool:
    step, attempt = rows["step"], rows["attempt"]
    later = step[1:] > step[:-1]
    again = (step[1:] == step[:-1]) & (attempt[1:] > attempt[:-1])
    return bool((later | again).all())


def last_of_each_step(rows: Rows) -> Rows:
    """Keep one row for each step: that of the latest attempt."""
    again = rows["step"][1:] == rows["step"][:-1]
    return rows[np.append(~again, True)] if again.any() else rows


def by_page(rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Split rows, given in order of step, by page number."""
    numbers = rows["step"] >> PAGE_BITS
    for first, end in pairwise((*starts_of(numbers).tolist(), len(rows))):
        yield int(numbers[first]), rows[first:end]


class NewestPage(NamedTuple):
    """The newest page of a series: its number (-1 if there is none) and its rows."""

    number: int
    rows: Rows

    @property
    def edge(self) -> int:
        """The first step of the page. Cells are built only from rows before it."""
        return max(self.number, 0) << PAGE_BITS


Tails: TypeAlias = dict[Key, NewestPage]
"""The newest pages that are already loaded, by series."""


@dataclass(frozen=True, slots=True)
class PagedSeries:
    """One kind of series, in pages of one table. ``summarize`` returns the values of the columns before `data`.

    ``replaces``: of several rows of one step and attempt, the last is kept instead of the first.
    """

    table: Table
    dtype: np.dtype[Any]
    summarize: Callable[[Rows], tuple[Any, ...]]
    replaces: bool = False

    def put(
        self, connection: Connection, new: Mapping[Key, Rows], tails: Tails | None = None
    ) -> int:
        """Add rows, in order of step, to several series of a run. Return how many of their steps are new.

        Pages in ``tails`` are not read again; afterwards it holds the newest pages. Raises Damaged.
        """
        tails = {} if tails is None else tails
        pages, added = [], 0
        for key, rows in new.items():
            held = self._held(connection, key, rows, tails)
            for number, some in by_page(rows):
                before = held.get(number, rows[:0])
                after = merged(before, some, replace=self.replaces)
                added += _steps(after) - _steps(before)
                pages.append((*key, number, *self.summarize(after), pack(after)))
                if number >= tails[key].number:
                    tails[key] = NewestPage(number, after)
        insert_rows(connection, self.table, pages, replace=True)
        return added

    def _held(self, connection: Connection, key: Key, rows: Rows, tails: Tails) -> dict[int, Rows]:
        """The stored rows, by page number, of the pages to which ``rows`` may be added."""
        tail = self.tail(connection, key, tails)
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        before = (
            self.pages(connection, key, first, min(last, tail.edge - 1))
            if first < tail.edge
            else rows[:0]
        )
        return {**dict(by_page(before)), tail.number: tail.rows}

    def tail(self, connection: Connection, key: Key, tails: Tails) -> NewestPage:
        """Return the newest page of a series, and keep it in ``tails``. Raises Damaged."""
        if key not in tails:
            newest = NewestPage(-1, np.zeros(0, self.dtype))
            for number, data in self._found(connection, key, most=1, backwards=True):
                newest = NewestPage(number, self.opened(number, data))
            tails[key] = newest
        return tails[key]

    def read(self, connection: Connection, key: Key, first: int, last: int) -> Rows:
        """The rows of all attempts from step ``first`` to ``last``, both included. Raises Damaged."""
        rows = self.pages(connection, key, first, last)
        left, right = np.searchsorted(rows["step"], [first, last + 1])
        return rows[left:right]

    def pages(self, connection: Connection, key: Key, first: int, last: int) -> Rows:
        """All rows of the pages that overlap these steps. Raises Damaged."""
        found = self._found(connection, key, first, last)
        return joined([np.zeros(0, self.dtype), *(self.opened(*page) for page in found)])

    def opened(self, number: int, data: bytes) -> Rows:
        """Unpack a page. Raises Damaged, also if its steps do not match its number."""
        rows = unpack(data, self.dtype)
        if not len(rows) or {int(rows["step"][end]) >> PAGE_BITS for end in (0, -1)} != {number}:
            raise Damaged("the steps of a page of rows differ from its key")
        return rows

    def head(
        self,
        read: Callable[[int, int], Rows],
        following: Callable[[int], int | None],
        within: Range,
        limit: int,
    ) -> Rows:
        """The first ``limit`` rows at steps ``within``, both ends included, found by ``read`` in some pages at a time.

        ``following`` returns the first step at or after a given one that may have a row.
        """
        parts: list[Rows] = [np.zeros(0, self.dtype)]
        first: int | None = within[0]
        size = 1 << PAGE_BITS
        while first is not None and first <= within[1] and limit > 0:
            # A page is read as a whole: fewer steps at a time would read it again. Sparse rows take more steps.
            stop = first + max(limit, size)
            size = min(2 * size, AT_ONCE << PAGE_BITS)
            parts.append(read(first, min(stop - 1, within[1]))[:limit])
            limit -= len(parts[-1])
            first = following(stop) if limit else None
        return joined(parts)

    def following(self, connection: Connection, key: Key, step: int) -> int | None:
        """The first step at or after ``step`` that may have a row."""
        found = self._found(connection, key, step, most=1, data=False)
        return max(step, found[0][0] << PAGE_BITS) if found else None

    def preceding(self, connection: Connection, key: Key, step: int) -> int | None:
        """The first step of the last page that may have a row before ``step``."""
        found = self._found(connection, key, last=step - 1, most=1, backwards=True, data=False)
        return found[0][0] << PAGE_BITS if found else None

    def _found(
        self,
        connection: Connection,
        key: Key,
        first: int = 0,
        last: int = INTEGER_MAX,
        *,
        most: int = ALL,
        backwards: bool = False,
        data: bool = True,
    ) -> list[tuple[Any, ...]]:
        """The numbers and, with ``data``, the packed rows of at most ``most`` pages that overlap these steps."""
        wanted = {"low": first >> PAGE_BITS, "high": last >> PAGE_BITS, "most": most}
        return fetch(connection, _finding(self.table, backwards, data), bound(key) | wanted)


def _steps(rows: Rows) -> int:
    """Count the distinct steps of ordered rows."""
    steps = rows["step"]
    return min(len(steps), 1) + int(np.count_nonzero(steps[1:] != steps[:-1]))


@lru_cache
def _finding(table: Table, backwards: bool, data: bool) -> Select[Any]:
    of = table.c
    statement = select(of.bucket, of.data) if data else select(of.bucket)
    return (
        statement.where(key_is(table), of.bucket.between(bindparam("low"), bindparam("high")))
        .order_by(of.bucket.desc() if backwards else of.bucket)
        .limit(bindparam("most"))
    )
