"""Writes pieces of a table as CSV, JSON lines, Parquet or an Arrow stream. Only the last two load pyarrow."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import orjson

from ampmon.system.installing import install
from ampmon_server.exchange.exporting.tables import COLUMNS, Kind, Piece, Table


if TYPE_CHECKING:
    from ampmon_server.exchange.exporting.columnar import Columnar

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


class MissingFormat(Exception):
    """The format needs a library that is not installed. The message names the command that installs it."""


class TableWriter(Protocol):
    """Turns pieces of a table into the bytes of a file."""

    def write(self, piece: Piece) -> bytes:
        """Return the bytes that a piece adds to the file, maybe none yet."""

    def close(self) -> bytes:
        """Return the bytes that end the file."""


def writer(kind: Format, table: Table) -> TableWriter:
    """Return the writer of ``table`` in a format. Raises MissingFormat."""
    if kind == "csv":
        return _Csv(table)
    if kind == "jsonl":
        return _JsonLines(table)
    return columnar(table, kind)[0]


def columnar(table: Table, kind: Format) -> tuple[Columnar, Callable[[Any], Iterator[Any]]]:
    """Return a writer of Parquet or an Arrow stream, and a reader of that stream's batches. Raises MissingFormat."""
    try:
        from ampmon_server.exchange.exporting.columnar import Columnar, batches
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingFormat(f"the format {kind} needs pyarrow: {install('files')}") from None
    return Columnar(COLUMNS[table], parquet=kind == "parquet"), batches


def written(into: TableWriter, pieces: Iterable[Piece]) -> Iterator[bytes]:
    """Yield the file in parts. Only the last may be empty."""
    for piece in pieces:
        if part := into.write(piece):
            yield part
    yield into.close()


class _JsonLines:
    """One JSON object per row. A number that is not finite is null, and another column holds its kind."""

    def __init__(self, table: Table) -> None:
        self._names = tuple(COLUMNS[table])

    def write(self, piece: Piece) -> bytes:
        names = self._names
        rows = zip(*(piece[name] for name in names), strict=True)
        return b"".join(
            orjson.dumps(dict(zip(names, row, strict=True)), option=orjson.OPT_APPEND_NEWLINE)
            for row in rows
        )

    def close(self) -> bytes:
        return b""


class _Csv:
    """A header, then one line per row. Lists and details are JSON. Text is escaped so that no cell is a formula."""

    def __init__(self, table: Table) -> None:
        self._kinds: Mapping[str, Kind] = COLUMNS[table]
        self._head = ",".join(self._kinds) + "\n"

    def write(self, piece: Piece) -> bytes:
        text = io.StringIO(newline="")
        text.write(self._head)
        self._head = ""
        columns = [_cells(piece[name], kind) for name, kind in self._kinds.items()]
        csv.writer(text, lineterminator="\n").writerows(zip(*columns, strict=True))
        return text.getvalue().encode()

    def close(self) -> bytes:
        return self._head.encode()


def _cells(values: Sequence[Any], kind: Kind) -> Sequence[Any]:
    if kind in {"json", "ints", "culprits"}:
        return [orjson.dumps(each).decode() for each in values]
    if kind == "text":
        return [
            f"'{each}" if each is not None and each.startswith(_FORMULAS) else each
            for each in values
        ]
    return values
