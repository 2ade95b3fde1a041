"""Checks pages of rows against their checksums and keys, and their summary columns against their rows.

Each page is read once: `HeldPages` records what other checks need of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Row, and_, update

from ampmon_server.store.admin.checks.finding import REPAIR, RESTORE, Defect, in_order
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.pages.pages import AT_ONCE, PAGE_BITS, PagedSeries, Rows, last_of_each_step
from ampmon_server.store.updates import scalars, updates


Place = tuple[int, int]
"""Stream and attempt."""


class UpdateSpan(NamedTuple):
    """The number of updates, and the steps of the first and the last."""

    updates: int
    first: int
    last: int


class Counted(NamedTuple):
    """Counts of a stream: its distinct steps, its samples, and its first and last step."""

    updates: int = 0
    sampled: int = 0
    first_step: int | None = None
    last_step: int | None = None


@dataclass(slots=True)
class HeldPages:
    """What the pages of a run hold. The numbers of streams in ``damaged`` are incomplete."""

    spans: dict[Place, UpdateSpan] = field(default_factory=dict)
    counted: dict[int, Counted] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    findings: list[Defect] = field(default_factory=list)
    _logged: dict[tuple[int, int, int], npt.NDArray[np.bool_]] = field(default_factory=dict)
    """By stream, attempt and page number: for each step of the page, whether anything was logged."""

    def logged(self) -> dict[Place, int]:
        """The number of steps at which anything was logged."""
        found: dict[Place, int] = {}
        for (stream, attempt, _), steps in self._logged.items():
            found[stream, attempt] = found.get((stream, attempt), 0) + int(steps.sum())
        return found

    def note_updates(self, stream: int, rows: Rows) -> None:
        last = int(rows["step"][-1])
        for attempt, steps in _by_attempt(rows):
            before = self.spans.get((stream, attempt), UpdateSpan(0, int(steps[0]), 0))
            count = before.updates + len(steps)
            self.spans[stream, attempt] = UpdateSpan(count, before.first, int(steps[-1]))
        held = self.counted.get(stream, Counted(first_step=int(rows["step"][0])))
        distinct = held.updates + len(last_of_each_step(rows))
        sampled = held.sampled + int(rows["sampled"].sum())
        self.counted[stream] = Counted(distinct, sampled, held.first_step, last)

    def note_scalars(self, stream: int, rows: Rows) -> None:
        for attempt, steps in _by_attempt(rows):
            place = stream, attempt, int(steps[0]) >> PAGE_BITS
            marks = self._logged.setdefault(place, np.zeros(1 << PAGE_BITS, np.bool_))
            marks[steps & (1 << PAGE_BITS) - 1] = True


def _by_attempt(rows: Rows) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    for attempt in np.unique(rows["attempt"]).tolist():
        yield attempt, rows["step"][rows["attempt"] == attempt]


def read(connection: Connection, run_id: bytes, where: str, *, mending: bool = False) -> HeldPages:
    """Read every page of a run. With ``mending``, also correct wrong summary columns."""
    held = HeldPages()
    for paged, note in (
        (updates.PAGES, held.note_updates),
        (scalars.PAGES, held.note_scalars),
    ):
        for row in in_order(connection, paged.table, run_id, AT_ONCE):
            try:
                rows = paged.opened(row.bucket, row.data)
            except Damaged as error:
                held.damaged.add(row.stream)
                held.findings.append(Defect(_place(paged, row, where), str(error), RESTORE))
                continue
            note(row.stream, rows)
            expected = _expected(paged, rows)
            wrong = [name for name, value in expected.items() if getattr(row, name) != value]
            if wrong:
                what = f"its summary ({', '.join(wrong)}) differs from its rows"
                held.findings.append(Defect(_place(paged, row, where), what, REPAIR))
                if mending:
                    _mend(connection, paged, row, expected)
    return held


def _place(paged: PagedSeries, row: Row[Any], where: str) -> str:
    first = row.bucket << PAGE_BITS
    named = f", {row.name!r}" if "name" in row._mapping else ""
    steps = f"steps {first} to {first + (1 << PAGE_BITS) - 1}"
    return f"{where}, {paged.table.name}, stream {row.stream}{named}, {steps}"


def _expected(paged: PagedSeries, rows: Rows) -> dict[str, Any]:
    """The summary columns that a page should have."""
    key = {*paged.table.primary_key.c.keys(), "data"}
    names = [name for name in paged.table.c.keys() if name not in key]  # noqa: SIM118
    return dict(zip(names, paged.summarize(rows), strict=True))


def _mend(
    connection: Connection, paged: PagedSeries, row: Row[Any], expected: dict[str, Any]
) -> None:
    key = and_(*(column == getattr(row, column.name) for column in paged.table.primary_key.c))
    connection.execute(update(paged.table).where(key).values(expected))
