"""Which records are held: ranges of seq of each stream of an attempt. Makes ingest idempotent and losses visible."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, select

from ampmon_server.store import ranges
from ampmon_server.store.batch import Share
from ampmon_server.store.engine import insert_rows
from ampmon_server.tables import ledger


class Page:
    """The ledger of one stream of an attempt, as it stands in a transaction."""

    def __init__(self, connection: Connection, run_id: bytes, stream: int, attempt: int) -> None:
        self._connection = connection
        self._key = (run_id, stream, attempt)
        self._held = self._load()

    def _load(self) -> list[ranges.Range]:
        columns = ledger.c
        rows = self._connection.execute(
            select(columns.first_seq, columns.last_seq)
            .where(
                columns.run_id == self._key[0],
                columns.stream == self._key[1],
                columns.attempt == self._key[2],
            )
            .order_by(columns.first_seq)
        )
        return [(first, last) for first, last in rows]

    @property
    def last(self) -> int:
        """The last seq held; -1 for none."""
        return self._held[-1][1] if self._held else -1

    @property
    def lost(self) -> int:
        """Records that are missing before the last one held."""
        return ranges.missing(self._held)

    def unknown(self, share: Share) -> Share:
        """Those of a batch's records that are not held yet."""
        return share.take(ranges.absent(share.seqs, self._held))

    def add(self, share: Share) -> None:
        """Hold these records from now on."""
        before, after = (
            self._held,
            ranges.merge([*self._held, *ranges.from_numbers(share.seqs)]),
        )
        self._held = after
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

    def _delete(self, firsts: set[int]) -> None:
        columns = ledger.c
        statement = delete(ledger).where(
            columns.run_id == self._key[0],
            columns.stream == self._key[1],
            columns.attempt == self._key[2],
            columns.first_seq == bindparam("first"),
        )
        self._connection.execute(statement, [{"first": first} for first in firsts])
