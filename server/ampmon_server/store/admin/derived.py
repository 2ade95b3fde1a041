"""Checks the cells of a run against the rows and cells that they aggregate, level by level, and rebuilds them.

Defines the defect that each check of `ampmon db verify` reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, TypeAlias
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
    """Yield the defects in the cells of a run. With ``mending``, also repair those that rows can restore."""
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
        if scaler.sampled:
            name = f"gradients of scaler {scaler.name!r}"
            yield name, samples.series(connection, scaler)


def _parameters(connection: Connection, run_id: bytes) -> Named:
    for scaler in scalers_of(connection, run_id):
        for source in scaler.sources:
            if source.sampled:
                samples = parameter_rollups.stream_samples(connection, source)
                if not samples.names:
                    raise Damaged(f"the names of stream {source.number}'s parameters are missing")
                yield f"parameters of stream {source.number}", samples.series


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

    kind: str
    level: int
    bucket: int
    held: int = 0
    found: int = 0


@dataclass(slots=True)
class _Comparison:
    """Compares the pages of a series, called ``name``, with the data below them.

    With ``mending``, replace a wrong page, unless that would lose data whose rows are pruned.
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
            _, _, buckets, held, found = zip(*alike, strict=True)
            first, last = levels.steps_of((buckets[0], buckets[-1]), level + 1)
            place = f"{self.name}, steps {first} to {last}"
            pages = f"{len(buckets)} page{'s' * (len(buckets) != 1)} of level {level}"
            if kind != "wrong":
                remedy = RESTORE if kind == "lost" else REPAIR
                yield Defect(place, f"{pages} cannot be read", remedy)
            elif sum(held) == sum(found):
                yield Defect(place, f"{pages} with values that differ from the data below", REPAIR)
            else:
                counts = "counts" if len(buckets) == 1 else "count"
                what = f"{pages} {counts} {sum(held)} rows where there are {sum(found)}"
                yield Defect(place, what, REPAIR)

    def _compare_all(self) -> None:
        tops = [self._chunk(number) for number in self._chunks()]
        if any(fault.kind == "lost" for fault in self._faults):
            return
        cells = joined([np.zeros(0, self.series.pyramid.dtype), *tops])
        for level in range(_CHUNK, TOP + 1):
            cells = self.series.pyramid.roll(cells, level)
            self._compare(level, cells, self._pages(level))

    def _chunks(self) -> list[int]:
        """The numbers of the level-4 cells that have pages or rows below them, in order."""
        bits = BITS * _CHUNK
        found = set(self._pages(_CHUNK - 1))
        step = self.series.following(0)
        while step is not None and step < self.series.edge:
            found.add(step >> bits)
            step = self.series.following(((step >> bits) + 1) << bits)
        return sorted(found)

    def _chunk(self, number: int) -> Cells:
        """Compare the pages under a cell of level 4, and return that cell recomputed, as ingest computes it.

        Return no cells if a page whose rows are pruned cannot be read: the cells above it cannot be checked.
        """
        series, pyramid = self.series, self.series.pyramid
        low, high = levels.steps_of((number, number), _CHUNK)
        first = max(low, series.whole_from)
        cells = series.rows(first, min(high, series.edge - 1))
        for level in range(1, _CHUNK):
            span = BITS * (level + 1)
            held = self._pages(level, (low >> span, high >> span))
            cells = pyramid.roll(cells, level)
            if level < pyramid.lowest:
                held = {at: page for at, page in held.items() if at << span >= first}
            elif level == pyramid.lowest:
                pruned = self._pruned(held)
                if pruned is None:
                    return cells[:0]
                cells = joined([pruned, cells])
            self._compare(level, cells, held)
        return cells

    def _pruned(self, pages: _Pages) -> Cells | None:
        """The cells whose rows are pruned, which nothing can check. None if a page of them cannot be read."""
        level, whole_from = self.series.pyramid.lowest, self.series.whole_from
        kept, lost = [np.zeros(0, self.series.pyramid.dtype)], []
        for at, page in pages.items():
            if page is not None:
                kept.append(page[page["first"] < whole_from])
            elif at << BITS * (level + 1) < whole_from:
                lost.append(_Fault("lost", level, at))
        self._faults += lost
        return None if lost else joined(kept)

    def _compare(self, level: int, cells: Cells, held: _Pages) -> None:
        series, pyramid = self.series, self.series.pyramid
        made = pyramid.paged(cells, level)
        for at in sorted(made.keys() | held.keys()):
            expected, found = made.get(at, cells[:0]), held.get(at, cells[:0])
            if found is None:
                self._faults.append(_Fault("damaged", level, at))
            elif not _same(expected, found):
                counts = int(found["n"].sum()), int(expected["n"].sum())
                self._faults.append(_Fault("wrong", level, at, *counts))
            else:
                continue
            if self.mending and at in made:
                row = (*series.key, level, at, pyramid.pack(expected))
                insert_rows(series.connection, pyramid.table, [row], replace=True)
            elif self.mending:
                pyramid.drop(series.connection, series.key, level, {at})

    def _pages(self, level: int, buckets: Range = (0, INTEGER_MAX)) -> _Pages:
        series = self.series
        found: _Pages = {}
        for bucket, data in series.pyramid.pages(series.connection, series.key, level, buckets):
            try:
                found[bucket] = series.pyramid.unpack([data])
            except Damaged:
                found[bucket] = None
        return found


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
