"""Records which seqs of each stream of an attempt are stored. Makes ingest idempotent and losses visible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, func, select

from ampmon import wire
from ampmon_server.store.engine.rows import fetch, insert_rows, of_attempt
from ampmon_server.store.ingest.plan import StreamBatch
from ampmon_server.store.ingest.roster import Remembered, Steps
from ampmon_server.store.pages import ranges
from ampmon_server.store.schema.tables import ledger
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import StreamSource


_COLUMNS = ledger.c
_HERE = of_attempt(ledger)
_BEFORE = ledger.alias()
_START = select(func.max(_BEFORE.c.first_seq)).where(
    of_attempt(_BEFORE), _BEFORE.c.first_seq <= bindparam("first")
)
_NEAR = (
    select(_COLUMNS.first_seq, _COLUMNS.last_seq, _COLUMNS.first_step, _COLUMNS.last_step)
    .where(
        _HERE,
        _COLUMNS.first_seq >= func.coalesce(_START.scalar_subquery(), 0),
        _COLUMNS.first_seq <= bindparam("last"),
    )
    .order_by(_COLUMNS.first_seq)
)
"""Selects the ranges with any seq from ``first`` to ``last``, and the one before them, in order."""
_NEWEST = select(_COLUMNS.last_seq).where(_HERE).order_by(_COLUMNS.first_seq.desc()).limit(1)
"""Selects the last seq of the last range."""
_DELETING = delete(ledger).where(_HERE, _COLUMNS.first_seq == bindparam("first"))


class LedgerView:
    """The part of a stream's ledger that a share of a batch touches, within a transaction.

    Reads only that part, however many gaps there are elsewhere.
    """

    last: int
    """The last stored seq; -1 for none."""
    _near: dict[ranges.Range, Steps | None]

    def __init__(
        self,
        connection: Connection,
        stream: StreamSource,
        attempt: Attempt,
        share: StreamBatch,
        remembered: Remembered,
    ) -> None:
        self._connection = connection
        self._key = (*stream.key, attempt.number)
        self._of = {**stream.bound, "attempt": attempt.number}
        self._origin = attempt.origin
        self._remembered = remembered.newest
        held = self._remembered.get(self._key[1:])
        # The usual batch continues where the last one ended, and reads nothing.
        if held is not None and share.records[0].seq > held[0][1]:
            self._near = dict([held])
            self.last = held[0][1]
            return
        # One seq more, because a range that begins right after the batch is merged with it.
        ends = {"first": share.records[0].seq, "last": share.records[-1].seq + 1}
        self._near = {
            (first, last): None if first_step is None else (first_step, last_step)
            for first, last, first_step, last_step in fetch(connection, _NEAR, {**self._of, **ends})
        }
        newest = fetch(connection, _NEWEST, self._of)
        self.last = newest[0][0] if newest else -1

    def unknown(self, share: StreamBatch) -> StreamBatch:
        """The records of the share that are not stored yet."""
        new = ranges.absent(share.seqs, list(self._near))
        return share if len(new) == len(share.records) else share.at(new)

    def add(self, share: StreamBatch) -> int:
        """Mark records as stored. Return how many more are missing before the last stored seq than before the call."""
        seqs = share.seqs
        new = {each: self._steps(share, seqs, each) for each in ranges.from_numbers(seqs)}
        before, after = self._near, _merged({**self._near, **new})
        self._near = after
        last, self.last = self.last, max(self.last, seqs[-1])
        gone = {first for first, _ in before} - {first for first, _ in after}
        if gone:
            self._connection.execute(_DELETING, [{**self._of, "first": first} for first in gone])
        changed = [
            (*self._key, *each, *(steps or (None, None)))
            for each, steps in after.items()
            if each not in before or before[each] != steps
        ]
        insert_rows(self._connection, ledger, changed, replace=True)
        newest = max(after)
        # Where an earlier gap was filled, the newest range is not among those read.
        if newest[1] == self.last:
            self._remembered[self._key[1:]] = newest, after[newest]
        return self.last - last - len(share.records)

    def _steps(self, share: StreamBatch, seqs: Sequence[int], within: ranges.Range) -> Steps | None:
        """The first and last step of the share's updates whose seq is ``within`` a range."""
        records = share.records[bisect_left(seqs, within[0]) : bisect_right(seqs, within[1])]
        ordinals = [each.ordinal for each in records if type(each) is wire.Update]
        return (self._origin + ordinals[0], self._origin + ordinals[-1]) if ordinals else None


def _merged(held: Mapping[ranges.Range, Steps | None]) -> dict[ranges.Range, Steps | None]:
    """Merge ranges, in any order, overlapping or touching, into the fewest with the same seqs, and join their steps."""
    places = ranges.merge(held)
    firsts = [first for first, _ in places]
    merged: dict[ranges.Range, Steps | None] = dict.fromkeys(places)
    for (first, _), steps in held.items():
        place = places[bisect_right(firsts, first) - 1]
        both = [each for each in (merged[place], steps) if each is not None]
        if both:
            merged[place] = min(low for low, _ in both), max(high for _, high in both)
    return merged
