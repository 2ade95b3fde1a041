"""Finds the streams of a scaler (one on each rank), and their headers, which contain packed lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
from sqlalchemy import BigInteger, Connection, bindparam, select

from ampmon import wire
from ampmon_server.model.series import Flags, Ints
from ampmon_server.store.engine.errors import Damaged, NotFound
from ampmon_server.store.engine.numbers import INTEGER_MAX
from ampmon_server.store.engine.rows import bound, fetch, of_stream
from ampmon_server.store.pages.packing import compress, decompress
from ampmon_server.store.pages.pages import edge_of
from ampmon_server.store.schema.tables import headers, ledger, runs, streams
from ampmon_server.store.streams.attempts import Start, world_sizes


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
    # The sizes in a header may multiply to more than int64 holds.
    return np.array(
        [min(each.numel, wire.COUNT_MAX) for each in unpack_parameters(parameters)], np.int64
    )


_HEADERS = select(headers.c.attempt, headers.c.parameters, headers.c.sample).where(
    of_stream(headers), headers.c.attempt.in_(bindparam("attempts", expanding=True))
)


def packed_headers(
    connection: Connection, source: StreamSource, attempts: Collection[int]
) -> dict[int, tuple[bytes, int | None]]:
    """By attempt, the packed parameters in its header, and ``sample``. Raises Damaged if a header is missing."""
    rows = fetch(connection, _HEADERS, {**source.bound, "attempts": list(attempts)})
    found = {attempt: (parameters, sample) for attempt, parameters, sample in rows}
    if len(found) < len(attempts):
        raise Damaged(f"a header of stream {source.number} is missing")
    return found


@dataclass(frozen=True)
class Header:
    """A row of `tables.headers` without its key: settings are JSON, and parameters and modules packed lists."""

    scaler_type: str
    device: str
    enabled: int
    layout: str
    sample: int | None
    settings: str
    parameter_count: int
    parameters: bytes
    modules: bytes | None

    @cached_property
    def numel(self) -> Ints:
        """The number of elements of each parameter, [parameters]."""
        return numel(self.parameters)

    @cached_property
    def module_count(self) -> int:
        return len(unpack_modules(self.modules))

    @property
    def is_sharded(self) -> bool:
        return self.layout == "sharded"


NO_HEADER = Header("", "", 1, "replicated", None, "{}", 0, pack(()), None)


@dataclass(slots=True)
class StreamSource:
    """A stream. The first fields are the columns of `tables.streams`, in their order.

    ``overlaid``: the run has several attempts, so rows may be superseded.
    ``layout`` is "sharded" if it was so in any attempt. ``newest_attempt`` is the newest with a header of it. Rows
    before step ``rows_from`` and samples before ``samples_from`` are held only as rolled-up cells. Rows after step
    ``counts_to`` are left out, because the run went back and has not come that far again. Ingest sets ``header``, that
    of the attempt.
    """

    run_id: bytes
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
    newest_attempt: int = 0
    overlaid: bool = True
    counts_to: int = INTEGER_MAX
    header: Header = NO_HEADER

    @property
    def key(self) -> tuple[bytes, int]:
        """The first columns of the keys of its rows."""
        return self.run_id, self.number

    @property
    def bound(self) -> dict[str, Any]:
        """The key as bind parameters."""
        return bound(self.key)

    @property
    def edge(self) -> int:
        """The first step of the newest page, or `samples_from` if the stream ended before it."""
        return max(edge_of(self.last_step), self.samples_from)

    @property
    def reach(self) -> int:
        """The last step that counts; -1 for none."""
        return -1 if self.last_step is None else min(self.last_step, self.counts_to)

    def is_before(self, step: int) -> bool:
        """Whether all updates of the stream are before a step."""
        return self.last_step is None or self.last_step < step

    def meets(self, first: int, last: int) -> bool:
        """Whether the stream may have an update from step ``first`` to ``last``."""
        return self.first_step is not None and self.first_step <= last and first <= self.reach

    def has_all(self, first: int, last: int) -> bool:
        """Whether the stream is known to have an update at every step from ``first`` to ``last``."""
        if self.first_step is None or self.last_step is None:
            return False
        is_whole = self.updates == self.last_step - self.first_step + 1
        return is_whole and self.first_step <= first and last <= self.last_step

    def count(self, updates: int, sampled: int, first: int, last: int) -> None:
        """Add to the counts: ``updates`` new steps and ``sampled`` samples, from step ``first`` to ``last``."""
        self.updates += updates
        self.sampled += sampled
        self.first_step = first if self.first_step is None else min(self.first_step, first)
        self.last_step = last if self.last_step is None else max(self.last_step, last)


@dataclass(frozen=True, slots=True)
class Scaler:
    """One scaler of a run on all its ranks, lowest first. ``sources`` is empty if no rank has reported."""

    run_id: bytes
    name: str
    sources: tuple[StreamSource, ...]
    disabled: bool

    @property
    def number(self) -> int:
        """The lowest stream number, under which the scaler's cells are stored. There must be a stream."""
        return min(source.number for source in self.sources)

    @property
    def rows_from(self) -> int:
        """The first step from which on all rows are held."""
        return max((source.rows_from for source in self.sources), default=0)

    @property
    def edge(self) -> int:
        """The first step of the newest page, whose rows are not rolled up yet."""
        last = max((source.last_step or 0 for source in self.sources), default=0)
        return max(edge_of(last), self.samples_from)

    @property
    def samples_from(self) -> int:
        """The first step from which on all samples are held."""
        return max((source.samples_from for source in self.sources), default=0)

    @property
    def stop(self) -> int:
        """The step after the last one that counts on any rank."""
        return max((source.counts_to for source in self.sources), default=INTEGER_MAX) + 1

    @property
    def is_sharded(self) -> bool:
        """Whether gradients were sharded in any attempt."""
        return any(source.layout == "sharded" for source in self.sources)

    @property
    def sampled(self) -> tuple[StreamSource, ...]:
        """The streams that have its gradients: all ranks if sharded in any attempt, else the lowest that samples."""
        if self.is_sharded:
            return self.sources
        return tuple(source for source in self.sources if source.sampled)[:1]

    def since(self, start: Start | None) -> Scaler:
        """The scaler without the updates that a start of its run has undone."""
        if start is None:
            return self
        cut = [replace(each, counts_to=start.reach(each.number)) for each in self.sources]
        return replace(self, sources=tuple(cut))


_NUMBER = bindparam("number", type_=BigInteger)
_OF_RUN = (
    select(runs.c.disabled, *streams.c, runs.c.attempts)
    .outerjoin_from(
        runs,
        streams,
        (streams.c.run_id == runs.c.run_id) & (_NUMBER.is_(None) | (streams.c.stream == _NUMBER)),
    )
    .where(runs.c.run_id == bindparam("of"), runs.c.deleted == 0)
    .order_by(streams.c.rank, streams.c.stream)
)
"""Selects the streams of a run, or the one with a ``number``; without any, a row with nulls for their columns."""


def _found(
    connection: Connection, run_id: bytes, stream: int | None = None
) -> tuple[bool, list[StreamSource]]:
    """Whether a run is disabled, and its streams, or only one. Raises NotFound for an unknown run."""
    found = fetch(connection, _OF_RUN, {"of": run_id, "number": stream})
    if not found:
        raise NotFound(f"There is no run {UUID(bytes=run_id)}.")
    return bool(found[0][0]), [
        StreamSource(*[*fields, attempts > 1])
        for _, *fields, attempts in found
        if fields[0] is not None
    ]


def _numbered(of: Sequence[StreamSource], run_id: bytes, stream: int | None) -> list[StreamSource]:
    """The ``stream`` among those of a run, or all of them. Raises NotFound."""
    found = [each for each in of if stream in {None, each.number}]
    if stream is not None and not found:
        raise NotFound(f"Run {UUID(bytes=run_id)} has no stream {stream}.")
    return found


def find(connection: Connection, run_id: UUID, stream: int | None) -> Scaler:
    """The scaler of a stream, or the run's first scaler. Raises NotFound for an unknown run or stream."""
    disabled, every = _found(connection, run_id.bytes)
    of = [each for each in every if each.scaler]
    chosen = _numbered(of, run_id.bytes, stream)
    name = min(chosen, key=attrgetter("number")).scaler if chosen else ""
    return Scaler(run_id.bytes, name, tuple(each for each in of if each.scaler == name), disabled)


def sources(connection: Connection, run_id: bytes, stream: int | None = None) -> list[StreamSource]:
    """The streams of a run, or the requested one. Raises NotFound."""
    return _numbered(_found(connection, run_id, stream)[1], run_id, stream)


def scalers_of(connection: Connection, run_id: bytes) -> list[Scaler]:
    """The scalers of a run, over all of its ranks. Raises NotFound."""
    found: dict[str, list[StreamSource]] = {}
    disabled, of = _found(connection, run_id)
    for source in of:
        found.setdefault(source.scaler, []).append(source)
    found.pop("", None)
    # A database may sort by its locale.
    return [Scaler(run_id, name, tuple(found[name]), disabled) for name in sorted(found)]


_SHARDED = (
    select(headers.c.attempt)
    .distinct()
    .join(streams, (headers.c.run_id == streams.c.run_id) & (headers.c.stream == streams.c.stream))
    .where(
        streams.c.run_id == bindparam("of"),
        streams.c.scaler == bindparam("name"),
        headers.c.layout == "sharded",
    )
)
"""Selects the attempts in which any rank's gradients are sharded."""


def sharded_attempts(connection: Connection, scaler: Scaler) -> list[int]:
    """The attempts in which any rank's gradients are sharded."""
    if not scaler.is_sharded:
        return []
    wanted = {"of": scaler.run_id, "name": scaler.name}
    return [attempt for (attempt,) in fetch(connection, _SHARDED, wanted)]


def shards(connection: Connection, scaler: Scaler) -> dict[int, int]:
    """By attempt, how many of `Scaler.sampled`, counted from the first, have a part of each sample; at least 1.

    A run may resume on more or fewer ranks, and with another layout. The lowest rank always takes part.
    """
    if len(scaler.sampled) < 2:
        return defaultdict(lambda: 1)
    attempts = sharded_attempts(connection, scaler)
    return {
        attempt: max(sum(each.rank < size for each in scaler.sampled), 1)
        if attempt in attempts
        else 1
        for attempt, size in world_sizes(connection, scaler.run_id).items()
    }


_REDONE = select(ledger.c.attempt, ledger.c.first_step, ledger.c.last_step).where(
    of_stream(ledger),
    ledger.c.attempt > bindparam("attempt"),
    ledger.c.first_step <= bindparam("last"),
    ledger.c.last_step >= bindparam("first"),
)
"""Selects the ranges of steps done by attempts after ``attempt`` that overlap ``first`` to ``last``."""


def current(connection: Connection, source: StreamSource, steps: Ints, attempts: Ints) -> Flags:
    """Which rows, with ``steps`` [n] and ``attempts`` [n], no later attempt supersedes, [n]."""
    keep = np.ones(len(steps), bool)
    if not len(steps):
        return keep
    ends = {"first": int(steps.min()), "last": int(steps.max())}
    asked = {**source.bound, **ends, "attempt": int(attempts.min())}
    for attempt, first, last in fetch(connection, _REDONE, asked):
        keep &= (attempts >= attempt) | (steps < first) | (steps > last)
    return keep
