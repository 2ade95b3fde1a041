"""Writes Parquet and Arrow with pyarrow, one group of rows at a time."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from ampmon.errors import TransportError
from ampmon_server.exchange.formats import ROW_GROUP, Kind, Piece


_CULPRITS = pa.list_(
    pa.struct([("parameter", pa.string()), ("inf", pa.int64()), ("nan", pa.int64())])
)
_TYPES: Mapping[Kind, Any] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "json": pa.string(),
    "ints": pa.list_(pa.int64()),
    "culprits": _CULPRITS,
}


class Columnar:
    """Writes a table with these columns."""

    def __init__(self, columns: Mapping[str, Kind], *, parquet: bool) -> None:
        self._columns = columns
        self._schema = pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])
        self._bytes = _Bytes()
        self._group: list[Any] = []
        self._rows = 0
        self._parquet = parquet
        self._file = (
            pq.ParquetWriter(self._bytes, self._schema, compression="zstd")
            if parquet
            else pa.ipc.new_stream(self._bytes, self._schema)
        )

    def written(self, pieces: Iterable[Piece]) -> Iterator[bytes]:
        """Yield the file that holds the pieces, in parts."""
        for piece in pieces:
            arrays = [_array(piece[name], kind) for name, kind in self._columns.items()]
            yield self.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        yield self.close()

    def write_batch(self, batch: Any) -> bytes:
        """Return the bytes that a record batch adds to the file."""
        self._group.append(batch)
        self._rows += batch.num_rows
        if not self._parquet or self._rows >= ROW_GROUP:
            self._flush()
        return self._bytes.take()

    def close(self) -> bytes:
        if self._rows:
            self._flush()
        self._file.close()
        return self._bytes.take()

    def _flush(self) -> None:
        self._file.write_table(pa.Table.from_batches(self._group, self._schema))
        self._group, self._rows = [], 0


def _array(values: Sequence[Any], kind: Kind) -> Any:
    if kind == "json":
        values = [orjson.dumps(each).decode() for each in values]
    return pa.array(values, _TYPES[kind])


def batches(stream: Any) -> Iterator[Any]:
    """Yield the record batches of an Arrow stream, read piece by piece. Raises TransportError if it is cut off."""
    try:
        yield from pa.ipc.open_stream(stream)
    except pa.ArrowInvalid as error:
        raise TransportError(f"the server's answer is incomplete ({error})") from None


class _Bytes(io.BytesIO):
    """A file in memory. `take` removes and returns what was written, also after `close`."""

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        taken = self.getvalue()
        self.seek(0)
        self.truncate()
        return taken
