"""Checks the cells of a run against the rows and cells that they aggregate, level by level, and rebuilds them.

Defines the defect that each check of `ampmon db verify` reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, Table, select

from ampmon_server.model.aggregates.merging import Cells, joined
from ampmon_server.store.engine import postgresql
from ampmon_server.store.engine.errors import Damaged, NotFound
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import insert_rows
from ampmon_server.store.pages import pyramid as levels
from ampmon_server.store.pages.pyramid import BITS, TOP
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.pages.windows import WindowedSeries
from ampmon_server.store.samples import parameter_rollups, samples
from ampmon_server.store.schema import tables
from ampmon_server.store.streams.scalers import scalers_of, sources
from ampmon_server.store.updates import scalars, updates


REPAIR = "ampmon db verify --repair rebuilds it from the rows"
RESTORE = "it cannot be rebuilt: restore a copy of the database"
DELETE = "ampmon db verify --repair deletes them"

_CHUNK = 4
"""The rows under one cell of this level are in memory at once."""
_ROUNDING = 1e-9
"""Relative tolerance of floating-point sums, which depend on the order of addition."""

Named: TypeAlias = Iterator[tuple[str, WindowedSeries]]
"""Series with their names."""

_Pages: TypeAlias = dict[int, Cells | None]
"""The cells of each page, by the number of the cell above them. None for a page that cannot be read."""


class Defect(NamedTuple):
    """A defect in the database: where, what, and the remedy. Its text is one line."""

    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}; {self.remedy}"

    def of_run(self, run_id: object) -> Defect:
        """The defect with its run before the place."""
        return self._replace(where=f"run {run_id}, {self.where}".removesuffix(", "))


def defects(connection: Connection, run_id: bytes, *, mending: bool = False) -> Iterator[Defect]:
    """Yield the defects in the cells of a run. With ``mending``, also repair what the rows tell."""
    for table, series_of in SERIES.items():
        try:
            for name, series in series_of(connection, run_id):
                yield from _Comparison(name, series, mending).defects()
        except Damaged as error:
            yield Defect(table.name, str(error), RESTORE)


def unsound(connection: Connection, run_id: UUID) -> Defect | None:
    """Return the first defect in the cells of a run, or None if they are sound or the run is deleted."""
    postgresql.lift_timeouts(connection)
    try:
        first = next(defects(connection, run_id.bytes), None)
    except NotFound:
        return None
    return None if first is None else first.of_run(run_id)


def _updates(connection: Connection, run_id: bytes) -> Named:
    for scaler in scalers_of(connection, run_id):
        yield f"updates of scaler {scaler.name!r}", updates.series(connection, scaler)


def _gradients(connection: Connection, run_id: bytes) -> Named:
    for scaler in scalers_of(connection, run_id):
        yield f"gradients of scaler {scaler.name!r}", samples.series(connection, scaler)


def _parameters(connection: Connection, run_id: bytes) -> Named:
    for scaler in scalers_of(connection, run_id):
        for source in scaler.sources:
            samples = parameter_rollups.stream_samples(connection, source)
            if samples.names:
                yield f"parameters of stream {source.number}", samples.series
            elif source.sampled:
                raise Damaged(f"the names of stream {source.number}'s parameters are missing")


def _scalars(connection: Connection, run_id: bytes) -> Named:
    of = {source.number: source for source in sources(connection, run_id)}
    named = {
        (stream, name)
        for held in (tables.scalar_pages.c, tables.scalar_rollups.c)
        for stream, name in connection.execute(
            select(held.stream, held.name).distinct().where(held.run_id == run_id)
        )
    }
    for stream, name in sorted(named):
        if stream in of:  # the check of streams reports the others
            yield (
                f"scalar {name!r} of stream {stream}",
                scalars.series(connection, of[stream], name),
            )


SERIES: dict[Table, Callable[[Connection, bytes], Named]] = {
    tables.rollups: _updates,
    tables.gradient_rollups: _gradients,
    tables.parameter_rollups: _parameters,
    tables.scalar_rollups: _scalars,
}
"""By table of cells, the series of a run. They must be sound before the rows below them are pruned."""


class _Fault(NamedTuple):
    """A defect of one page: its kind and place, the rows that its cells count, and the rows found below."""

    kind: Literal["unreadable", "unreadable, pruned", "wrong", "alone"]
    level: int
    bucket: int
    held: int = 0
    found: int = 0

    @property
    def remedy(self) -> str:
        return REPAIR if self.kind in {"unreadable", "wrong"} else RESTORE


@dataclass(slots=True)
class _Comparison:
    """Compares the pages of a series, called ``name``, with the data below them.

    With ``mending``, make every cell again that counts no more rows than are below it. A cell that counts more stays
    as it is: its rows are pruned or lost, whatever the damaged database says of them.
    """

    name: str
    series: WindowedSeries
    mending: bool
    _faults: list[_Fault] = field(default_factory=list)

    def defects(self) -> Iterator[Defect]:
        """Yield one defect for each level and kind of fault. Memory holds the data under one cell of level 4."""
        try:
            self._compare_all()
        except Damaged as error:
            yield Defect(self.name, f"a block of it cannot be read: {error}", RESTORE)
        for (kind, level), alike in groupby(sorted(self._faults), attrgetter("kind", "level")):
            faults = list(alike)
            first, last = levels.steps_of((faults[0].bucket, faults[-1].bucket), level + 1)
            what = f"{len(faults)} page{'s' * (len(faults) != 1)} of level {level}"
            held, found = (sum(each) for each in zip(*(fault[3:] for fault in faults), strict=True))
            if kind.startswith("unreadable"):
                what += " cannot be read"
            elif held == found:
                what += " with values that differ from the data below"
            else:
                counts = "counts" if len(faults) == 1 else "count"
                what += f" {counts} {held} rows where there are {found}"
            place = f"{self.name}, steps {first} to {last}"
            yield Defect(place, what, faults[0].remedy)

    def _compare_all(self) -> None:
        series = self.series
        parts = [np.zeros(0, series.pyramid.dtype)]
        for number in self._chunks():
            low, high = levels.steps_of((number, number), _CHUNK)
            cells = series.rows(max(low, series.whole_from), min(high, series.edge - 1))
            for level in range(1, _CHUNK):
                span = BITS * (level + 1)
                cells = self._compare(level, cells, (low >> span, high >> span))
            parts.append(cells)
        cells = joined(parts)
        for level in range(_CHUNK, TOP + 1):
            cells = self._compare(level, cells)

    def _chunks(self) -> list[int]:
        """The numbers of the level-4 cells that have pages or rows below them, in order."""
        bits = BITS * _CHUNK
        found = set(self._pages(_CHUNK - 1))
        step = self.series.following(0)
        while step is not None and step < self.series.edge:
            found.add(step >> bits)
            step = self.series.following(((step >> bits) + 1) << bits)
        return sorted(found)

    def _compare(self, level: int, below: Cells, buckets: Range = (0, INTEGER_MAX)) -> Cells:
        """Compare pages of a level with the cells or rows ``below``, and return the best cells of that level."""
        pyramid, start = self.series.pyramid, self.series.whole_from
        held, span = self._pages(level, buckets), BITS * (level + 1)
        if level < pyramid.lowest:
            # Without rows, nothing tells which of these pages there should be.
            held = {at: page for at, page in held.items() if at << span >= start}
        made = pyramid.roll(below, level)
        kept = joined([made[:0], *(page for page in held.values() if page is not None)])
        if level == pyramid.lowest:  # nothing can check cells whose rows are pruned
            made = joined([kept[kept["first"] < start], made])
        best = _fullest(made, kept, level)
        known, pages = pyramid.paged(made, level), pyramid.paged(best, level)
        for at in sorted(pages.keys() | held.keys()):
            right, found = pages.get(at, made[:0]), held.get(at, made[:0])
            if found is None:
                pruned = level == pyramid.lowest and at << span < start
                fault = _Fault("unreadable, pruned" if pruned else "unreadable", level, at)
            elif not _same(right, found):
                fault = _Fault("wrong", level, at, _rows(found), _rows(right))
            elif _rows(found) != (rows := _rows(known.get(at, made[:0]))):
                fault = _Fault("alone", level, at, _rows(found), rows)
            else:
                continue
            self._faults.append(fault)
            if self.mending and fault.remedy == REPAIR:
                self._replace(level, at, right)
        return made if level < pyramid.lowest else best

    def _replace(self, level: int, at: int, cells: Cells) -> None:
        series, pyramid = self.series, self.series.pyramid
        if len(cells):
            row = (*series.key, level, at, pyramid.pack(cells))
            insert_rows(series.connection, pyramid.table, [row], replace=True)
        else:
            pyramid.drop(series.connection, series.key, level, {at})

    def _pages(self, level: int, buckets: Range = (0, INTEGER_MAX)) -> _Pages:
        series = self.series
        found: _Pages = {}
        for bucket, data in series.pyramid.pages(series.connection, series.key, level, buckets):
            try:
                cells = series.pyramid.unpack([data])
            except Damaged:
                found[bucket] = None
                continue
            first, last = (cells[name] >> BITS * level for name in ("first", "last"))
            belongs = np.array_equal(first, last) and (first >> BITS == bucket).all()
            found[bucket] = cells if belongs else None
        return found


def _fullest(made: Cells, held: Cells, level: int) -> Cells:
    """The cells ``made``, with each of the ``held`` ones that counts more rows in its place."""
    bits = BITS * level
    rows = dict(zip((made["first"] >> bits).tolist(), made["n"].tolist(), strict=True))
    numbers = (held["first"] >> bits).tolist()
    counted = np.array([rows.get(number, 0) for number in numbers], np.int64)
    fuller = held[held["n"] > counted]
    if not len(fuller):
        return made
    rest = made[~np.isin(made["first"] >> bits, fuller["first"] >> bits)]
    cells = joined([fuller, rest])
    return cells[np.argsort(cells["first"])]


def _rows(cells: Cells) -> int:
    return int(cells["n"].sum())


def _same(one: Cells, other: Cells) -> bool:
    """Whether cells are equal, apart from the rounding of sums."""
    if one.tobytes() == other.tobytes():
        return True
    return len(one) == len(other) and all(
        np.allclose(one[name], other[name], rtol=_ROUNDING, atol=0, equal_nan=True)
        if one[name].dtype.kind == "f"
        else np.array_equal(one[name], other[name])
        for name in one.dtype.names or ()
    )
