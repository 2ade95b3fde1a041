"""Reads the tables of an export from the store, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import UUID

from ampmon_server.exchange.formats import COLUMNS, Piece, Table
from ampmon_server.store import Store, Summary
from ampmon_server.store.engine.numbers import INTEGER_MAX, split_named
from ampmon_server.store.samples.samples import ExportedSample


ROWS = 4096
"""Most rows in a piece. A piece of `skips` or `events` has the rows of one read of the store."""
_PAGE = 1000


def pieces(store: Store, run_id: UUID, table: Table) -> Iterator[Piece]:
    """Yield a table's rows: updates, samples and scalars in order of step, skips and events newest first.

    Each piece is read in its own transaction, so later pieces may contain rows written meanwhile. Raises NotFound.
    """
    summary, _ = store.run(run_id)
    if table == "updates":
        return _updates(store, run_id, summary)
    if table == "samples":
        return _samples(store, run_id)
    if table == "scalars":
        return _scalars(store, run_id)
    read = store.skips if table == "skips" else store.events
    return _listed(partial(read, run_id, limit=_PAGE), COLUMNS[table])


def _updates(store: Store, run_id: UUID, summary: Summary) -> Iterator[Piece]:
    streams = {each["scaler"]: int(each["stream"]) for each in reversed(summary.streams)}
    for scaler, stream in sorted(streams.items()):
        start: int | None = 0
        while scaler and start is not None:
            page = store.updates(
                run_id, stream=stream, start=start, stop=INTEGER_MAX + 1, limit=ROWS
            )
            start = page.following
            if rows := len(page.columns["step"] or ()):
                nothing = [None] * rows
                columns = {
                    name: nothing if each is None else each for name, each in page.columns.items()
                }
                columns["scaler"] = [scaler] * rows
                yield {name: columns[name] for name in COLUMNS["updates"]}


def _listed(read: Callable[..., Any], columns: Iterable[str]) -> Iterator[Piece]:
    """Yield rows that the store lists page by page."""
    cursor: str | None = None
    while True:
        page = read(cursor=cursor)
        rows = [asdict(row) for row in page.rows]
        yield {name: [row[name] for row in rows] for name in columns}
        if (cursor := page.next) is None:
            return


def _scalars(store: Store, run_id: UUID) -> Iterator[Piece]:
    for of in store.scalar_names(run_id):
        beside = {"name": of.name, "stream": of.stream, "rank": of.rank, "scaler": of.scaler}
        start: int | None = 0
        while start is not None:
            page = store.scalars(
                run_id,
                of.name,
                stream=int(of.stream),
                start=start,
                stop=INTEGER_MAX + 1,
                limit=ROWS,
            )
            start = page.next
            yield {
                name: [beside[name]] * len(page.step) if name in beside else getattr(page, name)
                for name in COLUMNS["scalars"]
            }


def _samples(store: Store, run_id: UUID) -> Iterator[Piece]:
    for sampled in store.samples(run_id):
        for first in range(0, len(sampled.sample.statistics.parameters), ROWS):
            yield _sample(sampled, slice(first, first + ROWS))


def _sample(of: ExportedSample, part: slice) -> Piece:
    sample, statistics = of.sample, of.sample.statistics
    found = [of.parameters[index] for index in statistics.parameters[part].tolist()]
    alike = {name: getattr(sample, name) for name in ("step", "time", "scale")}
    alike |= {name: getattr(of, name) for name in ("scaler", "rank", "attempt")}
    columns: dict[str, Sequence[Any]] = {
        **{name: [value] * len(found) for name, value in alike.items()},
        "parameter": [each.name for each in found],
        "shape": [list(each.shape) for each in found],
        "dtype": [each.dtype for each in found],
    }
    for name in ("amax", "sum_squares"):
        pairs = map(split_named, getattr(statistics, name)[part].tolist())
        columns[name], columns[f"{name}_kind"] = map(list, zip(*pairs, strict=True))
    for name in COLUMNS["samples"].keys() - columns.keys():
        columns[name] = getattr(statistics, name)[part].tolist()
    return {name: columns[name] for name in COLUMNS["samples"]}
