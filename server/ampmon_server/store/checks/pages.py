"""Holds pages of updates to their checksums and the steps in their keys, and what stands beside them to their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row, and_, update

from ampmon_server.store.checks.finding import REPAIR, RESTORE, Finding
from ampmon_server.store.checks.reading import in_order
from ampmon_server.store.errors import Damaged
from ampmon_server.store.pages import PAGE_BITS
from ampmon_server.store.updates import PAGES


_AT_ONCE = 256
"""Pages read by one statement."""

_TABLE = PAGES.table
_BESIDE = [
    column.name for column in _TABLE.c if column.name not in {*_TABLE.primary_key.c.keys(), "data"}
]


def check(
    connection: Connection, run_id: bytes, where: str, *, mending: bool = False
) -> Iterator[Finding]:
    """That every page is what was packed; ``mending``, what stands beside one is made anew where it is wrong."""
    for row in in_order(connection, _TABLE, run_id, ("stream", "bucket"), _AT_ONCE):
        first = row.bucket << PAGE_BITS
        last = first + (1 << PAGE_BITS) - 1
        place = f"{where}, {_TABLE.name}, stream {row.stream}, steps {first} to {last}"
        try:
            rows = PAGES.opened(row.bucket, row.data)
        except Damaged as error:
            yield Finding(place, str(error), RESTORE)
            continue
        told = dict(zip(_BESIDE, PAGES.told(rows), strict=True))
        wrong = [name for name, value in told.items() if getattr(row, name) != value]
        if wrong:
            yield Finding(place, f"{', '.join(wrong)} beside it say other than its rows", REPAIR)
            if mending:
                _mend(connection, row, told)


def _mend(connection: Connection, row: Row[Any], told: dict[str, Any]) -> None:
    key = and_(*(column == getattr(row, column.name) for column in _TABLE.primary_key.c))
    connection.execute(update(_TABLE).where(key).values(told))
