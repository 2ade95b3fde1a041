"""Streams (a scaler on one rank) and their headers, which contain packed lists of parameters and modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, bindparam, select

from ampmon import wire
from ampmon_server.model.series import Ints
from ampmon_server.store.engine.engine import fetch
from ampmon_server.store.pages.packing import compress, decompress
from ampmon_server.store.schema.tables import headers, streams


_parameters_decoder = msgspec.msgpack.Decoder(tuple[wire.Parameter, ...])
_modules_decoder = msgspec.msgpack.Decoder(tuple[wire.Module, ...])


def pack(listed: tuple[wire.Parameter, ...] | tuple[wire.Module, ...]) -> bytes:
    return compress(msgspec.msgpack.encode(listed))


@lru_cache(maxsize=32)
def unpack_parameters(data: bytes) -> tuple[wire.Parameter, ...]:
    return _parameters_decoder.decode(decompress(data))


@lru_cache(maxsize=32)
def unpack_modules(data: bytes | None) -> tuple[wire.Module, ...]:
    return _modules_decoder.decode(decompress(data)) if data is not None else ()


@lru_cache(maxsize=32)
def numel(parameters: bytes) -> Ints:
    """The number of elements of each packed parameter, [parameters]."""
    return np.array(
        [min(each.numel, wire.COUNT_MAX) for each in unpack_parameters(parameters)], np.int64
    )


_HEADER = select(headers.c.parameters, headers.c.sample).where(
    headers.c.run_id == bindparam("of"),
    headers.c.stream == bindparam("stream"),
    headers.c.attempt == bindparam("attempt"),
)


def packed_header(
    connection: Connection, run_id: bytes, stream: int, attempt: int
) -> tuple[bytes, int | None] | None:
    """The packed parameters in an attempt's header, and its ``sample``; None if no header is stored."""
    held = fetch(connection, _HEADER, {"of": run_id, "stream": stream, "attempt": attempt})
    return (held[0][0], held[0][1]) if held else None


def parameters_of(
    connection: Connection, run_id: bytes, stream: int, attempt: int
) -> tuple[wire.Parameter, ...]:
    """The parameters in an attempt's header; empty if no header is stored."""
    held = packed_header(connection, run_id, stream, attempt)
    return unpack_parameters(held[0]) if held else ()


def newest_header(run_id: bytes, stream: int, *columns: ColumnElement[Any]) -> Select[Any]:
    """Select columns of a stream's newest header."""
    header = headers.c
    return (
        select(*columns)
        .where(header.run_id == run_id, header.stream == stream)
        .order_by(header.attempt.desc())
        .limit(1)
    )


COLUMNS = (
    streams.c.stream,
    streams.c.rank,
    streams.c.scaler,
    streams.c.layout,
    streams.c.updates,
    streams.c.sampled,
    streams.c.first_step,
    streams.c.last_step,
    streams.c.rows_from,
    streams.c.samples_from,
)
"""The columns read of a stream: the first fields of `IngestStream`, in their order."""


class Header(NamedTuple):
    """The stored part of a header: parameter count, both lists (packed), sample size, settings as JSON, and layout."""

    parameter_count: int
    parameters: bytes
    modules: bytes | None
    sample: int | None
    settings: str
    layout: str


@dataclass(slots=True)
class IngestStream:
    """A stream as ingest sees it. ``layout`` is "sharded" if it was so in any attempt.

    The attempt's header sets ``numel`` [parameters], ``module_count``, ``sample`` and ``is_sharded``.
    """

    number: int
    rank: int
    scaler: str
    layout: str
    updates: int
    sampled: int
    first_step: int | None
    last_step: int | None
    rows_from: int = 0
    samples_from: int = 0
    numel: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    module_count: int = 0
    sample: int | None = None
    is_sharded: bool = False
    _header: Header | None = None

    @property
    def parameter_count(self) -> int:
        return len(self.numel)

    def note_header(self, held: Header) -> None:
        """Set the fields that the attempt's header sets."""
        if held is not self._header:  # unpack once, not for each batch
            self.numel, self.module_count = (
                numel(held.parameters),
                len(unpack_modules(held.modules)),
            )
            self.sample, self.is_sharded = held.sample, held.layout == "sharded"
            self._header = held

    def is_before(self, step: int) -> bool:
        """Whether all updates so far are before ``step``."""
        return self.last_step is None or self.last_step < step

    def count(self, updates: int, sampled: int, first: int, last: int) -> None:
        """Add to the counts: ``updates`` new steps and ``sampled`` samples, from step ``first`` to ``last``."""
        self.updates += updates
        self.sampled += sampled
        self.first_step = first if self.first_step is None else min(self.first_step, first)
        self.last_step = last if self.last_step is None else max(self.last_step, last)
