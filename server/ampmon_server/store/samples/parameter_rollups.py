"""Rolls up the gradients of each parameter for one rank: ingest recomputes the cells, and the heatmap reads them.

Attempts may have different parameters, or another order. A list of names that only grows gives each parameter its
place among all that the stream ever had. The list is stored with the cells, as a page of level 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from sqlalchemy import Connection, select

from ampmon.numerics.sampling_error import elements_of, sampling_weight
from ampmon_server.model.aggregates import parameters as of_parameters
from ampmon_server.model.aggregates.merging import Cells, Layout, joined
from ampmon_server.model.parameter_statistics import ColumnOf
from ampmon_server.model.series import Ints
from ampmon_server.store.engine.errors import Damaged
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import fetch, insert_rows, of_stream
from ampmon_server.store.pages import packing
from ampmon_server.store.pages.pyramid import Pyramid
from ampmon_server.store.pages.windows import FEW, Stretch, WindowedSeries
from ampmon_server.store.samples.samples import Change, next_step, reading
from ampmon_server.store.schema.tables import BLOCK, parameter_rollups
from ampmon_server.store.streams.scalers import (
    Scaler,
    StreamSource,
    current,
    numel,
    packed_headers,
    unpack_parameters,
)


VALUES_MAX = 300_000
"""About the most values of a statistic that one figure reads, however many parameters there are."""

_COUNTED = {*of_parameters.COUNTS, "subnormal_max", "zero_max", "on_grid_min"}
"""The fields of cells that need only the counts of a sample."""

_names_decoder = msgspec.msgpack.Decoder(list[str])

_NAMES = select(parameter_rollups.c.data).where(
    of_stream(parameter_rollups), parameter_rollups.c.level == 0
)
"""Selects the page with the names of a stream's parameters."""


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """The part of each cell to read: the parameters at ``places``, in that order, and some of the fields."""

    places: Sequence[int]
    fields: tuple[str, ...] = of_parameters.FIELDS


class _PackedPage(msgspec.Struct, array_like=True):
    """Cells of ``parameters`` parameters, with the ``fields`` that there were then, split into byte planes."""

    parameters: int
    fields: tuple[str, ...]
    planes: bytes


_page_decoder = msgspec.msgpack.Decoder(_PackedPage)


@dataclass(frozen=True, slots=True)
class ParameterPyramid(Pyramid):
    """Cells of ``parameters`` parameters. Each page names what it has: older ones may have fewer parameters or fields.

    With a ``part``, only that part is read, and nothing can be written.
    """

    parameters: int = 0
    part: ParameterPart | None = None

    def pack(self, cells: Cells) -> bytes:
        planes = cells.view(np.uint8).reshape(-1, 8).T.tobytes()
        page = _PackedPage(self.parameters, cells.dtype.names or (), planes)
        return packing.compress(msgspec.msgpack.encode(page))

    def unpack(self, pages: Iterable[bytes]) -> Cells:
        parts = [self._unpacked(page) for page in pages]
        return joined(parts) if parts else np.zeros(0, self.dtype)

    def _unpacked(self, data: bytes) -> Cells:
        try:
            page = _page_decoder.decode(packing.decompress(data))
            planes = np.frombuffer(page.planes, np.uint8).reshape(8, -1)
            dtype = of_parameters.dtype_of(page.fields, page.parameters)
            cells: Cells = np.frombuffer(planes.T.tobytes(), dtype)
            part = self.part or ParameterPart(range(self.parameters))
            if dtype == self.dtype and part.places == range(self.parameters):
                return cells
            return of_parameters.taken(cells, part.places, part.fields)
        except (msgspec.DecodeError, Damaged, ValueError) as error:
            raise Damaged(f"a page of {self.table.name} is damaged: {error}") from error


PartOf: TypeAlias = Callable[[Sequence[str]], ParameterPart]
"""Chooses the part to read, given the names of all parameters."""


@dataclass(frozen=True, slots=True)
class StreamSamples:
    """A stream's samples by parameter. ``names`` lists all parameters by place; ``part`` limits what is read."""

    connection: Connection
    source: StreamSource
    names: tuple[str, ...]
    part: ParameterPart | None = None

    @property
    def series(self) -> WindowedSeries:
        return WindowedSeries(
            self.connection,
            self.pyramid,
            self.source.key,
            self.rows,
            self.source.samples_from,
            self.source.edge,
            partial(next_step, self.connection, [self.source]),
            few=min(FEW, VALUES_MAX // max(len(self.names), 1)),
        )

    @property
    def pyramid(self) -> ParameterPyramid:
        return ParameterPyramid(
            parameter_rollups, self._layout, 4, parameters=len(self.names), part=self.part
        )

    @property
    def _layout(self) -> Layout:
        part = self.part or whole(self.names)
        return of_parameters.layout(len(part.places), part.fields)

    def rows(self, first: int, last: int) -> Cells:
        """The samples from step ``first`` to ``last`` as one cell per sample, without superseded ones."""
        asked = {**self.source.bound, "first": first, "stop": min(last, INTEGER_MAX) + 1}
        # The counts, and only if a field needs them, the magnitudes.
        asked_for = {*of_parameters.FIELDS}.intersection(self.pyramid.dtype.names or ())
        packed = BLOCK[: 1 + bool(asked_for - _COUNTED)]
        statement = reading(self.source.overlaid, *packed)
        found = fetch(self.connection, statement, asked)
        blocks = [(packing.PackedStack(*data), attempt) for attempt, *data in found]
        held = packed_headers(self.connection, self.source, {attempt for _, attempt in blocks})
        parts = [
            self._cells([stack for stack, _ in alike], *held[attempt])
            for (attempt, _), alike in groupby(blocks, key=_header_of)
        ]
        if not parts:
            return np.zeros(0, self.pyramid.dtype)
        steps = np.concatenate([part["first"] for part in parts])
        order = np.flatnonzero((steps >= first) & (steps <= last))
        if self.source.overlaid and len(order):
            attempts = np.repeat([row[1] for row in blocks], [len(row[0]) for row in blocks])
            kept = current(self.connection, self.source, steps[order], attempts[order])
            order = order[kept]
        order = order[np.argsort(steps[order], kind="stable")]
        return joined(parts)[_spanned(order)]

    def _cells(
        self, stacks: Sequence[packing.PackedStack], declared: bytes, sample: int | None
    ) -> Cells:
        """The samples of stacks of the same parameters, which a header ``declared``."""
        into = _places(self.names, declared)[stacks[0].parameters]
        if (into < 0).any():
            raise Damaged(f"the names of stream {self.source.number}'s parameters are missing")
        if self.part is not None:
            into = _positions(self.part.places, len(self.names))[into]
        kept = np.flatnonzero(into >= 0)
        return of_parameters.of_samples(
            np.concatenate([stack.steps for stack in stacks]),
            np.concatenate([stack.times for stack in stacks]),
            np.concatenate([stack.scales for stack in stacks]),
            _columns(stacks, _spanned(kept), numel(declared), sample),
            _spanned(into[kept]),
            self._layout,
        )


@lru_cache(maxsize=32)
def _places(names: tuple[str, ...], declared: bytes) -> Ints:
    """The place of each parameter in a header among all names, -1 if it was never sampled."""
    place = {name: index for index, name in enumerate(names)}
    found = [place.get(each.name, -1) for each in unpack_parameters(declared)]
    return np.array(found, np.int64)


def _header_of(block: tuple[packing.PackedStack, int]) -> tuple[int, bytes]:
    """The attempt of a block and its parameters. Neighbours that are alike in both are unpacked together."""
    stack, attempt = block
    return attempt, stack.parameters.tobytes()


def _spanned(indices: Ints) -> Ints | slice:
    """Indices as a slice if they are consecutive, as they usually are: it copies nothing, or several times faster."""
    if len(indices) and np.array_equal(indices, np.arange(len(indices)) + indices[0]):
        return slice(int(indices[0]), int(indices[0]) + len(indices))
    return indices


def _columns(
    stacks: Sequence[packing.PackedStack], kept: Ints | slice, sizes: Ints, sample: int | None
) -> ColumnOf:
    """The columns of the parameters ``kept``, by index in each stack. ``sizes`` are those of the header's."""

    @cache
    def column(name: str) -> Any:
        if name == "elements":
            return elements_of(column("looked"), sizes[stacks[0].parameters[kept]], sample)
        # Sample by sample, as cells are: turning a block around is cheaper than all of them.
        values = np.concatenate([np.ascontiguousarray(each.column(name, kept)) for each in stacks])
        if name == "sum_squares" and sample is not None:
            with np.errstate(invalid="ignore", over="ignore"):  # squares may be infinite or NaN
                return values * sampling_weight(column("looked"), column("elements"))
        return values

    return column


def _positions(places: Sequence[int], parameters: int) -> Ints:
    """The index in ``places`` of each parameter, [parameters]; -1 if it is not there."""
    found = np.full(parameters, -1)
    found[list(places)] = np.arange(len(places))
    return found


def stream_samples(connection: Connection, source: StreamSource) -> StreamSamples:
    """A stream's samples, with the stored names of its parameters."""
    held = fetch(connection, _NAMES, source.bound)
    names = tuple(_names_decoder.decode(packing.decompress(held[0][0]))) if held else ()
    return StreamSamples(connection, source, names)


def add_names(connection: Connection, source: StreamSource) -> StreamSamples:
    """Store the names in the header of the stream that ingest set. Return its samples with all names."""
    held = stream_samples(connection, source)
    more = unpack_parameters(source.header.parameters)
    names = dict.fromkeys((*held.names, *(each.name for each in more)))
    if len(names) == len(held.names):
        return held
    page = packing.compress(msgspec.msgpack.encode(list(names)))
    row = (*source.key, 0, 0, page)
    insert_rows(connection, parameter_rollups, [row], replace=True)
    return replace(held, names=tuple(names))


def note(connection: Connection, scaler: Scaler, stream: int, change: Change) -> None:
    """Rebuild the cells that a batch of updates of a stream has changed.

    Also of replicated gradients, of which readers see one rank: a later start may be sharded, and then all ranks count.
    """
    (source,) = (each for each in scaler.sources if each.number == stream)
    if not source.sampled:
        return
    changed = change.redone or bool(change.parts)
    before = change.stream_edge
    if changed or source.edge > before:
        first, last = (change.first, change.last) if changed else (before, before)
        add_names(connection, source).series.refresh(first, last, before)


def seal(connection: Connection, scaler: Scaler, before: int) -> None:
    """Roll up the newest page of each stream that ends before step ``before``, whose samples are to be pruned."""
    for source in scaler.sources:
        if source.sampled and source.last_step is not None and source.edge < before:
            series = stream_samples(connection, source).series
            replace(series, edge=before).roll_up(source.edge, source.last_step)


@dataclass(frozen=True, slots=True)
class ParameterSeries:
    """Cells of `ampmon_server.model.aggregates.parameters`, and the names of their parameters.

    ``shard`` is the rank whose shard the cells describe, or None if gradients are replicated. ``numel`` [n] is the
    number of elements of each parameter in the newest attempt, 0 if unknown. ``sample`` is how many elements are
    looked at in larger parameters, or None for all.
    """

    names: tuple[str, ...]
    cells: Cells
    shard: int | None
    numel: Ints
    sample: int | None


def read(
    connection: Connection,
    scaler: Scaler,
    stream: int | None,
    stretch: Stretch | None,
    columns: int,
    part_of: PartOf,
) -> ParameterSeries:
    """The cells of a stretch (none if it is None), of ``stream`` if it samples, else of the lowest rank that does.

    Finds cells like `windows.WindowedSeries.window`, limited to about `VALUES_MAX` values of each statistic.
    """
    sampled = [source for source in scaler.sampled if source.sampled]
    sources = [source for source in sampled if source.number == stream] or sampled
    if not sources or stretch is None:
        return ParameterSeries((), of_parameters.empty(), None, np.zeros(0, np.int64), None)
    of = stream_samples(connection, sources[0])
    room = max(VALUES_MAX // (8 * max(len(of.names), 1)), 2)
    part = part_of(of.names)
    cells = replace(of, part=part).series.window(stretch, min(columns, room))
    names = tuple(of.names[place] for place in part.places)
    held = sizes(connection, of.source)
    shard = of.source.rank if scaler.is_sharded else None
    return ParameterSeries(names, cells, shard, held.of(names), held.sample)


def whole(names: Sequence[str]) -> ParameterPart:
    """A `PartOf` that selects all fields of all parameters."""
    return ParameterPart(range(len(names)))


class Sizes(NamedTuple):
    """The number of elements of each parameter, and how many are looked at in larger ones, or None for all."""

    numel: Mapping[str, int]
    sample: int | None

    def of(self, names: Iterable[str]) -> Ints:
        """The number of elements of each named parameter; 0 if unknown."""
        return np.array([self.numel.get(name, 0) for name in names], np.int64)


def sizes(connection: Connection, source: StreamSource) -> Sizes:
    """The sizes in the header of the newest attempt."""
    parameters, sample = packed_headers(connection, source, [source.newest_attempt])[
        source.newest_attempt
    ]
    return Sizes({each.name: each.numel for each in unpack_parameters(parameters)}, sample)


def newest(
    connection: Connection, scaler: Scaler, start: int, wanted: int
) -> tuple[tuple[str, ...], Cells]:
    """Names, and the lowest sampling rank's last ``wanted`` samples from step ``start`` on, as one cell per sample.

    Where samples are pruned, returns fewer cells of several samples each.
    """
    sources = [source for source in scaler.sampled if source.sampled]
    if sources and start >= sources[0].samples_from:
        of = stream_samples(connection, sources[0])
        return of.names, of.rows(start, scaler.stop - 1)[-wanted:]
    series = read(connection, scaler, None, Stretch(start, scaler.stop), wanted, whole)
    return series.names, series.cells
