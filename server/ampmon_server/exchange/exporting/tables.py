"""The tables of an export: their columns, and a run's rows in pieces of bounded size, read from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, TypeAlias, get_args
from uuid import UUID

import numpy as np

from ampmon_server.model.case import RunEvent, Skip
from ampmon_server.model.series import Floats
from ampmon_server.store import Store, Summary
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.reading_export import ExportedSample, read_samples


Table: TypeAlias = Literal["updates", "skips", "events", "samples", "scalars"]
TABLES: Sequence[Table] = get_args(Table)
Kind: TypeAlias = Literal["int", "float", "text", "bool", "json", "ints", "culprits"]
Piece: TypeAlias = Mapping[str, Sequence[Any]]
"""Columns of equal length."""

ROWS = 32_768
"""Most rows in a piece. A piece of `skips` or `events` has the rows of one read of the store."""
_PAGE = 1000
_PARAMETERS = 4096


_NUMBERS: Mapping[Kind, str] = {
    "int": "step time attempt rank seq user_step growth_tracker memory_peak culprit_parameters looked zeros on_grid "
    "inf nan",
    "float": "duration_us cost_us scale scale_after zero_fraction below_grid_fraction subnormal_fraction "
    "zero_fraction_error below_grid_fraction_error subnormal_fraction_error headroom_bits gradient_norm value amax "
    "sum_squares",
    "bool": "skipped",
    "json": "detail",
    "ints": "histogram run_squares shape",
    "culprits": "culprits",
}
_KINDS = {name: kind for kind, names in _NUMBERS.items() for name in names.split()}


def _columns(names: str) -> Mapping[str, Kind]:
    """Columns in this order. Names without a kind in `_KINDS` are text."""
    return {name: _KINDS.get(name, "text") for name in names.split()}


COLUMNS: Mapping[Table, Mapping[str, Kind]] = {
    "updates": _columns(
        "step scaler attempt time duration_us scale scale_kind scale_after scale_after_kind growth_tracker event "
        "skipped path cost_us memory_peak zero_fraction below_grid_fraction subnormal_fraction zero_fraction_error "
        "below_grid_fraction_error subnormal_fraction_error headroom_bits headroom_bits_kind gradient_norm "
        "gradient_norm_kind"
    ),
    "skips": _columns(
        "step time stream rank scaler attempt optimizer path cause scale scale_kind scale_after scale_after_kind "
        "culprits culprit_order culprit_parameters origin origin_module loss"
    ),
    "events": _columns("time kind stream rank scaler attempt seq step detail"),
    "samples": _columns(
        "step time scaler rank attempt scale parameter shape dtype looked zeros on_grid inf nan amax amax_kind "
        "sum_squares sum_squares_kind histogram run_squares"
    ),
    "scalars": _columns("step time name stream rank scaler user_step value value_kind"),
}


def pieces(store: Store, run_id: UUID, table: Table) -> Iterator[Piece]:
    """Yield a table's rows: updates, samples and scalars in order of step, skips and events newest first.

    Each piece is read in its own transaction, so later pieces may contain rows written meanwhile. Raises NotFound.
    """
    summary, _ = store.run(run_id)
    return _READ[table](store, run_id, summary)


def _updates(store: Store, run_id: UUID, summary: Summary) -> Iterator[Piece]:
    streams = {each["scaler"]: int(each["stream"]) for each in reversed(summary.streams)}
    for scaler, stream in sorted(streams.items()):
        start: int | None = 0
        while scaler and start is not None:
            page = store.updates(
                run_id, stream=stream, start=start, stop=INTEGER_MAX + 1, limit=ROWS
            )
            start = page.following
            rows = len(page.columns["step"] or ())
            nothing = [None] * rows
            columns = {
                name: nothing if each is None else each for name, each in page.columns.items()
            }
            if rows:
                yield {name: columns.get(name, [scaler] * rows) for name in COLUMNS["updates"]}


def _listed(table: Literal["skips", "events"]) -> Callable[[Store, UUID, Summary], Iterator[Piece]]:
    """Return a reader of rows that the store lists page by page."""

    def pieces(store: Store, run_id: UUID, _: Summary) -> Iterator[Piece]:
        read = store.skips if table == "skips" else store.events
        cursor: str | None = None
        while True:
            page = read(run_id, limit=_PAGE, cursor=cursor)
            yield _of_rows(table, page.rows)
            if (cursor := page.next) is None:
                return

    return pieces


def _of_rows(table: Table, rows: Sequence[Skip] | Sequence[RunEvent]) -> Piece:
    plain = [asdict(row) for row in rows]
    return {name: [row[name] for row in plain] for name in COLUMNS[table]}


def _scalars(store: Store, run_id: UUID, _: Summary) -> Iterator[Piece]:
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


def _samples(store: Store, run_id: UUID, _: Summary) -> Iterator[Piece]:
    for sampled in read_samples(store, run_id):
        for first in range(0, len(sampled.sample.statistics.parameters), _PARAMETERS):
            yield _sample(sampled, slice(first, first + _PARAMETERS))


def _sample(of: ExportedSample, part: slice) -> Piece:
    sample, statistics = of.sample, of.sample.statistics
    found = [of.parameters[index] for index in statistics.parameters[part].tolist()]
    beside = {
        "step": sample.step,
        "time": sample.time,
        "scale": sample.scale,
        "scaler": of.scaler,
        "rank": of.rank,
        "attempt": of.attempt,
    }
    columns: dict[str, Sequence[Any]] = {
        "parameter": [each.name for each in found],
        "shape": [list(each.shape) for each in found],
        "dtype": [each.dtype for each in found],
    }
    for name in ("amax", "sum_squares"):
        columns[name], columns[f"{name}_kind"] = _finite(getattr(statistics, name)[part])
    for name in COLUMNS["samples"]:
        if name in beside:
            columns[name] = [beside[name]] * len(found)
        elif name not in columns:
            columns[name] = getattr(statistics, name)[part].tolist()
    return {name: columns[name] for name in COLUMNS["samples"]}


def _finite(values: Floats) -> tuple[list[float | None], list[str | None]]:
    """Split numbers into finite values, which any format holds, and the kinds of the others (inf, -inf, nan)."""
    kept = np.isfinite(values).tolist()
    pairs = list(zip(values.tolist(), kept, strict=True))
    return [value if ok else None for value, ok in pairs], [
        None if ok else str(value) for value, ok in pairs
    ]


_READ = {
    "updates": _updates,
    "skips": _listed("skips"),
    "events": _listed("events"),
    "samples": _samples,
    "scalars": _scalars,
}
