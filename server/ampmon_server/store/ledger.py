"""Which records are held: ranges of seq of each stream of an attempt. Makes ingest idempotent and losses visible."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, select

from ampmon_server.store import ranges
from ampmon_server.store.batch import Share
from ampmon_server.store.engine import fetch, insert_rows
from ampmon_server.tables import ledger


class Page:
    """The ledger of one stream of an attempt where a share of a batch meets it, as it stands in a transaction.

    Reads no more than that, however many gaps there are elsewhere.
    """

    def __init__(
        self, connection: Connection, run_id: bytes, stream: int, attempt: int, share: Share
    ) -> None:
        self._connection = connection
        self._key = (run_id, stream, attempt)
        of = {"of": run_id, "stream": stream, "attempt": attempt}
        ends = {"first": share.records[0].seq, "last": share.records[-1].seq + 1}
        self._near: list[ranges.Range] = [
            (first, last) for first, last in fetch(connection, _near(), {**of, **ends})
        ]
        newest = fetch(connection, _newest(), of)
        self.last: int = newest[0][0] if newest else -1
        """The last seq held; -1 for none."""

    def unknown(self, share: Share) -> Share:
        """Those of the share's records that are not held yet."""
        return share.take(ranges.absent(share.seqs, self._near))

    def add(self, share: Share) -> int:
        """Hold these records from now on; how many more are missing before the last one held than before."""
        before, after = self._near, ranges.merge([*self._near, *ranges.from_numbers(share.seqs)])
        self._near = after
        last, self.last = self.last, max(self.last, share.seqs[-1])
        gone = {first for first, _ in before} - {first for first, _ in after}
        if gone:
            self._delete(gone)
        changed = set(after) - set(before)
        insert_rows(
            self._connection,
            ledger,
            [(*self._key, first, last) for first, last in sorted(changed)],
            replace=True,
        )
        return self.last - last - len(share.records)

    def _delete(self, firsts: set[int]) -> None:
        statement = delete(ledger).where(*_here(), ledger.c.first_seq == bindparam("first"))
        of = dict(zip(("of", "stream", "attempt"), self._key, strict=True))
        self._connection.execute(statement, [{**of, "first": first} for first in firsts])


def _here() -> tuple[ColumnElement[bool], ...]:
    columns = ledger.c
    return (
        columns.run_id == bindparam("of"),
        columns.stream == bindparam("stream"),
        columns.attempt == bindparam("attempt"),
    )


@lru_cache
def _near() -> Select[Any]:
    """The ranges that hold any seq from ``first`` to ``last``, and the one before them, in order."""
    columns, before = ledger.c, ledger.alias()
    start = (
        select(func.max(before.c.first_seq))
        .where(
            before.c.run_id == bindparam("of"),
            before.c.stream == bindparam("stream"),
            before.c.attempt == bindparam("attempt"),
            before.c.first_seq <= bindparam("first"),
        )
        .scalar_subquery()
    )
    return (
        select(columns.first_seq, columns.last_seq)
        .where(
            *_here(),
            columns.first_seq >= func.coalesce(start, 0),
            columns.first_seq <= bindparam("last"),
        )
        .order_by(columns.first_seq)
    )


@lru_cache
def _newest() -> Select[Any]:
    """The last seq of the last range."""
    columns = ledger.c
    return select(columns.last_seq).where(*_here()).order_by(columns.first_seq.desc()).limit(1)
