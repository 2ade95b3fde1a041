"""Reads the rows of an export from Parquet, Arrow or JSON lines. Each column has the type that a record needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, Any, Literal, TypeAlias

import msgspec

from ampmon import wire
from ampmon.numerics.histogram import BINS, SMALL
from ampmon_server.exchange.formats import COLUMNS, TABLES, Table
from ampmon_server.exchange.logs import CannotImport


SUFFIXES = frozenset({".parquet", ".arrow", ".jsonl"})
_READ = 4096

StreamName: TypeAlias = Annotated[wire.StreamName, msgspec.Meta(pattern=wire.PRINTABLE)]
Scaler: TypeAlias = Annotated[StreamName, msgspec.Meta(min_length=1)]
Stream: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,18}\Z")]
Paths: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"\A((plain|unscaled|fused)(\+(plain|unscaled|fused))*)?\Z")
]
Duration: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=wire.COUNT_MAX)]
Counter32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class ExportedUpdate(msgspec.Struct, frozen=True, gc=False):
    """A row of `updates`."""

    step: wire.Count
    scaler: Scaler
    attempt: wire.Count
    time: wire.Time
    duration_us: Duration | None
    scale: float | None
    scale_kind: wire.NonFinite | None
    scale_after: float | None
    scale_after_kind: wire.NonFinite | None
    growth_tracker: Counter32
    event: wire.UpdateEvent
    skipped: bool
    path: Paths
    cost_us: Duration
    memory_peak: wire.Count | None


class ExportedCulprit(msgspec.Struct, frozen=True, gc=False):
    """A parameter in a row of `skips`."""

    parameter: wire.Name
    inf: wire.Count | None
    nan: wire.Count | None


class ExportedSkip(msgspec.Struct, frozen=True, gc=False):
    """A row of `skips`."""

    step: wire.Count
    stream: Stream
    rank: wire.Rank
    scaler: Scaler
    optimizer: wire.Name
    path: wire.StepPath
    culprits: Annotated[tuple[ExportedCulprit, ...], msgspec.Meta(max_length=256)]
    culprit_order: wire.BackwardOrder
    culprit_parameters: wire.Count
    origin: wire.ForwardOrigin | Literal["backward"] | None
    origin_module: wire.Name | None
    loss: wire.LossState | None


class ExportedEvent(msgspec.Struct, frozen=True, gc=False):
    """A row of `events`."""

    time: wire.Time
    kind: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[a-z][a-z0-9_]*\Z")]
    stream: Stream
    rank: wire.Rank
    scaler: StreamName
    attempt: wire.Count
    seq: wire.Count
    step: wire.Count | None
    detail: dict[str, Any]


class ExportedGradient(msgspec.Struct, frozen=True, gc=False):
    """A row of `samples`."""

    step: wire.Count
    scaler: Scaler
    rank: wire.Rank
    parameter: wire.Name
    shape: Annotated[tuple[wire.Count, ...], msgspec.Meta(max_length=64)]
    dtype: wire.Name
    looked: wire.Count
    zeros: wire.Count
    on_grid: wire.Count
    inf: wire.Count
    nan: wire.Count
    amax: float | None
    amax_kind: wire.NonFinite | None
    sum_squares: float | None
    sum_squares_kind: wire.NonFinite | None
    histogram: Annotated[tuple[wire.Count, ...], msgspec.Meta(min_length=BINS, max_length=BINS)]
    run_squares: Annotated[tuple[wire.Count, ...], msgspec.Meta(min_length=SMALL, max_length=SMALL)]

    def __post_init__(self) -> None:
        if self.about.numel > wire.COUNT_MAX:
            raise ValueError("shape: 2^53 elements or more")

    @property
    def about(self) -> wire.Parameter:
        return wire.Parameter(self.parameter, self.shape, self.dtype)


class ExportedScalar(msgspec.Struct, frozen=True, gc=False):
    """A row of `scalars`."""

    step: wire.Count
    time: wire.Time
    name: wire.Name
    stream: Stream
    rank: wire.Rank
    scaler: StreamName
    user_step: wire.Count | None
    value: float | None
    value_kind: wire.NonFinite | None


ROWS: Mapping[Table, type[msgspec.Struct]] = {
    "updates": ExportedUpdate,
    "skips": ExportedSkip,
    "events": ExportedEvent,
    "samples": ExportedGradient,
    "scalars": ExportedScalar,
}


def table_of(path: Path) -> Table | None:
    """Return which table a file holds, None if it has no rows. Raises CannotImport."""
    names = set(next((row for _, row in _plain(path)), ()))
    table = next((each for each in TABLES if names == set(COLUMNS[each])), None)
    if names and table is None:
        raise CannotImport(f"{path}: its columns do not match an ampmon export")
    return table


def rows_of(path: Path, table: Table) -> Iterator[Any]:
    """Yield the rows of a file, as the struct of its table. Raises CannotImport, which names the place of a fault."""
    kind = ROWS[table]
    coded = [name for name, of in COLUMNS[table].items() if of == "json"]
    for place, row in _plain(path):
        try:
            for name in coded:
                if isinstance(row.get(name), str):
                    row[name] = msgspec.json.decode(row[name])
            yield msgspec.convert(row, kind)
        except msgspec.DecodeError as error:
            raise CannotImport(f"{path}: {place}: {_words(error)}") from None


def _words(error: msgspec.DecodeError) -> str:
    """The error with the column's name, and without JSON's own notation."""
    what, _, where = str(error).replace("`", "").partition(" - at $.")
    return f"{where}: {what}" if where else what


def _plain(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file, after the words for its place."""
    with path.open("rb") as file:
        yield from _json_lines(path, file) if path.suffix == ".jsonl" else _columnar(path, file)


def _json_lines(path: Path, file: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, line in enumerate(file, start=1):
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise CannotImport(f"{path}: line {number} is not a JSON object") from None
        yield f"line {number}", row


def _columnar(path: Path, file: IO[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = 0
    try:
        batches: Iterable[Any] = (
            pq.ParquetFile(file).iter_batches(_READ)
            if path.suffix == ".parquet"
            else pa.ipc.open_stream(file)
        )
        for batch in batches:
            batch.validate(full=True)  # reading invalid offsets would end the process
            for row in batch.to_pylist():
                read += 1
                yield f"row {read}", row
    except (pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        why = " ".join(str(error).split())
        raise CannotImport(f"{path}: the file is damaged after row {read} ({why})") from None
