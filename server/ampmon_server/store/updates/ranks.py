"""Reads the single ranks of a scaler. Cells cover all ranks together, so this reads a limited number of rows.

For one rank it reads the newest rows. To compare ranks, it reads all of them at the same representative steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import numpy as np
from sqlalchemy import Connection, bindparam, select

from ampmon_server.model.aggregates.gradients import empty as no_gradients
from ampmon_server.model.aggregates.gradients import of_series
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.updates import LAYOUT, empty
from ampmon_server.model.series import Ints, RankRows
from ampmon_server.store.engine.errors import NotFound
from ampmon_server.store.engine.rows import fetch
from ampmon_server.store.pages.pages import PAGE_BITS
from ampmon_server.store.pages.windows import Stretch
from ampmon_server.store.samples import samples
from ampmon_server.store.schema.tables import streams, update_pages
from ampmon_server.store.streams import scalers
from ampmon_server.store.streams.scalers import Scaler, StreamSource
from ampmon_server.store.updates import updates
from ampmon_server.store.updates.updates import read_at, read_cells


ALONE = 2**15
"""The most updates read of one rank: the newest of a stretch."""

BESIDE = 8000
"""The most rows read to compare ranks, over all ranks together."""

RANKS = 64
"""The most ranks compared."""

_PAGE = update_pages.c
_NEWEST = (
    select(_PAGE.stream, _PAGE.bucket, _PAGE.skipped, _PAGE.scale_min, _PAGE.scale_max)
    .join(streams, (streams.c.run_id == _PAGE.run_id) & (streams.c.stream == _PAGE.stream))
    .where(
        streams.c.run_id == bindparam("of"),
        streams.c.scaler == bindparam("name"),
        _PAGE.bucket.between(bindparam("low"), bindparam("high")),
    )
)
"""Selects the skips, and the least and the greatest scale, in each of a range of pages on all ranks of a scaler."""


def window(
    connection: Connection, scaler: Scaler, rank: int, stretch: Stretch
) -> tuple[Cells, Cells]:
    """The updates and samples of a scaler's rank in a stretch, each as a cell of its own. Raises NotFound."""
    source = next((each for each in scaler.sources if each.rank == rank), None)
    if source is None:
        raise NotFound(f"The scaler {scaler.name!r} has no rank {rank}.")
    one = replace(scaler, sources=(source,))
    first, stop = updates.steps(connection, scaler, stretch)
    last = min(stop - 1, -1 if source.last_step is None else source.last_step)
    first = max(first, last + 1 - ALONE, source.rows_from)
    if last < first:
        return empty(), no_gradients()
    cells = read_cells(connection, one, first, last)
    gradients = of_series(samples.read_series(connection, one, start=first, stop=last + 1))
    return cells[stretch.begins(cells)], gradients[stretch.begins(gradients)]


def beside(
    connection: Connection, run_id: UUID, cells: Cells, columns: int, *, stream: int | None = None
) -> tuple[RankRows, ...]:
    """The rows of each rank at the same steps of some ``cells`` of updates; empty for a scaler on one rank.

    Raises NotFound.
    """
    scaler = scalers.find(connection, run_id, stream)
    sources = compared(connection, scaler, scaler.sources)
    if len(sources) < 2:
        return ()
    steps = representative_steps(cells, min(columns, BESIDE // len(sources)))
    steps = steps[steps >= scaler.rows_from]
    return tuple(
        RankRows(
            source.rank,
            len(scaler.sources),
            steps,
            read_at(connection, source, steps),
        )
        for source in sources
    )


def compared(
    connection: Connection, scaler: Scaler, sources: Sequence[StreamSource]
) -> Sequence[StreamSource]:
    """At most `RANKS` of a scaler's ``sources``, in the same order: the first, those that differ from it, then others.

    Whether they differ is looked up in the first one's two newest pages. One that is late may seem to.
    """
    if len(sources) <= RANKS:
        return sources
    first, *others = sources
    page = first.reach >> PAGE_BITS
    of = {"of": scaler.run_id, "name": scaler.name, "low": page - 1, "high": page}
    pages: defaultdict[int, dict[int, object]] = defaultdict(dict)
    for stream, bucket, *summary in fetch(connection, _NEWEST, of):
        pages[stream][bucket] = summary
    usual = pages[first.number]

    def agrees(source: StreamSource) -> bool:
        held = pages[source.number]
        return all(held[each] == usual[each] for each in held.keys() & usual.keys())

    kept = {first.number, *(each.number for each in sorted(others, key=agrees)[: RANKS - 1])}
    return [each for each in sources if each.number in kept]


def representative_steps(cells: Cells, most: int) -> Ints:
    """At most ``most`` steps of a stretch: all of them, or the ends and the newest skip of each of its columns."""
    if not len(cells):
        return np.zeros(0, np.int64)
    if len(cells) > most or (cells["n"] > 1).any():
        width = -(-len(cells) // max(most // 3, 1))
        cells = LAYOUT.merge(cells, np.arange(0, len(cells), width))
    steps = np.concatenate([cells[name] for name in ("first", "last", "skip_last")])
    return np.unique(steps[steps >= 0])
