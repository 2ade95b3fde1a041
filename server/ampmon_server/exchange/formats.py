"""The tables of an export, their columns, and their files: CSV, JSON lines, Parquet or an Arrow stream.

Only the last two load pyarrow.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import orjson

from ampmon.errors import ConfigurationError
from ampmon.system.installing import install


if TYPE_CHECKING:
    from ampmon_server.exchange.columnar import Columnar

Table: TypeAlias = Literal["updates", "skips", "events", "samples", "scalars"]
TABLES: Sequence[Table] = get_args(Table)
Kind: TypeAlias = Literal["int", "float", "text", "bool", "json", "ints", "culprits"]
Piece: TypeAlias = Mapping[str, Sequence[Any]]
"""Columns of equal length."""

Format: TypeAlias = Literal["csv", "jsonl", "parquet", "arrow"]
FORMATS: Sequence[Format] = get_args(Format)
MEDIA_TYPES: Mapping[Format, str] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}
ROW_GROUP = 65_536
"""Minimum rows of a Parquet row group. Large groups make smaller files that read faster."""
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


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


def written(kind: Format, table: Table, pieces: Iterable[Piece]) -> Iterator[bytes]:
    """Return the file that holds the pieces of ``table``, in parts. Raises ConfigurationError."""
    if kind == "csv":
        return _csv(table, pieces)
    if kind == "jsonl":
        return _json_lines(table, pieces)
    return columnar(table, kind)[0].written(pieces)


def columnar(table: Table, kind: Format) -> tuple[Columnar, Callable[[Any], Iterator[Any]]]:
    """Return a writer of Parquet or an Arrow stream, and a reader of its batches. Raises ConfigurationError."""
    try:
        from ampmon_server.exchange.columnar import Columnar, batches
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ConfigurationError(f"Parquet and Arrow need pyarrow: {install('files')}") from None
    return Columnar(COLUMNS[table], parquet=kind == "parquet"), batches


def _json_lines(table: Table, pieces: Iterable[Piece]) -> Iterator[bytes]:
    """One JSON object per row. A number that is not finite is null, and another column holds its kind."""
    names = tuple(COLUMNS[table])
    for piece in pieces:
        lines = io.BytesIO()
        for row in zip(*(piece[name] for name in names), strict=True):
            # Copied at once: orjson reserves 8 kB for a line as long as it exists.
            lines.write(
                orjson.dumps(dict(zip(names, row, strict=True)), option=orjson.OPT_APPEND_NEWLINE)
            )
        yield lines.getvalue()


def _csv(table: Table, pieces: Iterable[Piece]) -> Iterator[bytes]:
    """A header, then one line per row. Lists and details are JSON. Text is escaped so that no cell is a formula."""
    kinds = COLUMNS[table]
    yield f"{','.join(kinds)}\n".encode()
    for piece in pieces:
        text = io.StringIO(newline="")
        columns = [_cells(piece[name], kind) for name, kind in kinds.items()]
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        yield text.getvalue().encode()


def _cells(values: Sequence[Any], kind: Kind) -> Sequence[Any]:
    if kind in {"json", "ints", "culprits"}:
        return [orjson.dumps(each).decode() for each in values]
    if kind == "text":
        return [
            f"'{each}" if each is not None and each.startswith(_FORMULAS) else each
            for each in values
        ]
    return values
