"""Loads the streams that a batch touches, creates new ones, and stores their headers. Defines what ingest remembers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from uuid import UUID

from sqlalchemy import Connection, bindparam, select, update

from ampmon import wire
from ampmon_server.store.engine.errors import BadBatch, UnknownHeader
from ampmon_server.store.engine.numbers import json_text
from ampmon_server.store.engine.rows import fetch, insert_rows, of_stream
from ampmon_server.store.pages.pages import Tails
from ampmon_server.store.pages.ranges import Range
from ampmon_server.store.schema.tables import headers, streams
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import (
    Header,
    Scaler,
    StreamSource,
    pack,
    unpack_modules,
    unpack_parameters,
)
from ampmon_server.store.streams.state import RunState


STREAMS_MAX = 16_384
"""The most streams of a run, on all ranks. A list of runs shows all of them."""

_STREAMS = select(streams).where(streams.c.run_id == bindparam("of")).order_by(streams.c.stream)
_CHANGING = ("layout", "updates", "sampled", "first_step", "last_step", "newest_attempt")
_SAVING = (
    update(streams).where(of_stream(streams)).values({name: bindparam(name) for name in _CHANGING})
)


_HEADERS = select(headers.c.stream, *(headers.c[each.name] for each in fields(Header))).where(
    headers.c.run_id == bindparam("of"),
    headers.c.attempt == bindparam("attempt"),
    headers.c.stream.in_(bindparam("numbers", expanding=True)),
)
"""Selects an attempt's headers: the stream number, and the fields of `Header`."""


Steps = tuple[int, int]
"""The first and the last step of some updates."""


@dataclass(slots=True)
class Remembered:
    """Cached state of a run at ``version``, since the time ``changed``. Each change must increment the version.

    A database that lost its newest changes in a failover reaches the same version again, at another time.
    """

    version: int = -1
    changed: int = 0
    attempts: dict[UUID, Attempt] = field(default_factory=dict)
    streams: dict[tuple[int, str], StreamSource] = field(default_factory=dict)
    """All of the run by rank and scaler, in order of number."""
    headers: dict[tuple[int, int], Header] = field(default_factory=dict)
    """By stream and attempt."""
    newest: dict[tuple[int, int], tuple[Range, Steps | None]] = field(default_factory=dict)
    """The last range of the ledger and the steps of its updates, by stream and attempt."""
    tails: Tails = field(default_factory=dict)
    """The newest pages of updates, by stream, and of logged values, by stream and name."""

    def at(self, version: int, changed: int) -> Remembered:
        """Return itself, emptied if it is of another version."""
        if (version, changed) != (self.version, self.changed):
            for each in fields(self):
                if each.name not in {"version", "changed"}:
                    getattr(self, each.name).clear()
        return self

    @property
    def weight(self) -> int:
        """The size in units of `ingest.WEIGHT_MAX`; at least 1, because a run may have nothing but an attempt."""
        pages = sum(1 + each.rows.nbytes // 4096 for each in self.tails.values())
        return 1 + len(self.streams) + len(self.headers) + len(self.newest) + pages


class Roster:
    """The streams of a run, of which a batch touches some."""

    def __init__(
        self, connection: Connection, state: RunState, attempt: Attempt, remembered: Remembered
    ) -> None:
        self._connection = connection
        self._state = state
        self._attempt = attempt
        self._streams, self._headers = remembered.streams, remembered.headers
        self.tails = remembered.tails
        self.regrouped: set[str] = set()
        """Scalers whose samples have more parts since this batch if they are sharded: a rank is new, or now sharded."""

    def introduce(self, batch: wire.Batch, names: Iterable[str]) -> bool:
        """Load the streams in ``names``, and store the headers in the batch. Return whether one of them is new.

        Raises UnknownHeader, BadBatch.
        """
        described = {
            header.stream: (place, header)
            for place, header in enumerate(batch.headers)
            if isinstance(header, wire.StreamHeader)
        }
        wanted = {*names, *described}
        self._load(wanted)
        self._create({name: header.layout for name, (_, header) in described.items()})
        new = [header for place, header in described.values() if self._describe(place, header)]
        if new:
            mine = [self.mine(header.stream) for header in new]
            number = self._attempt.number
            rows = [(*each.key, number, *astuple(each.header)) for each in mine]
            insert_rows(self._connection, headers, rows, replace=True)
            self._apply(new)
        # The stream of the process itself has an empty name, and no header.
        for name in wanted - {*described, ""}:
            stream = self._streams.get((self._attempt.rank, name))
            if stream is None or (stream.number, self._attempt.number) not in self._headers:
                raise UnknownHeader(name)
            stream.header = self._headers[stream.number, self._attempt.number]
        return bool(new)

    def mine(self, name: str) -> StreamSource:
        """This attempt's stream of that name, created if it does not exist."""
        self._create({name: "replicated"})
        return self._streams[self._attempt.rank, name]

    def scaler(self, name: str) -> Scaler:
        """A scaler on all ranks, as readers see it now."""
        sources = [stream for (_, scaler), stream in self._streams.items() if scaler == name]
        sources.sort(key=lambda each: each.rank)
        for place, stream in enumerate(sources):
            stream.overlaid = self._state.attempts > 1
            # Only this rank's stream changes later. There may be thousands of others.
            if stream.rank == self._attempt.rank:
                sources[place] = replace(stream)
        return Scaler(self._state.run_id, name, tuple(sources), bool(self._state.disabled))

    @property
    def first(self) -> StreamSource | None:
        """The first stream of the scaler that the run's summary describes; None before there is one."""
        return next((each for each in self._streams.values() if each.scaler), None)

    @property
    def scalers(self) -> set[str]:
        """The names of all scalers."""
        return {each.scaler for each in self._streams.values() if each.scaler}

    @property
    def _count(self) -> int:
        """How many streams have a scaler."""
        return sum(bool(each.scaler) for each in self._streams.values())

    def save(self, stream: StreamSource) -> None:
        """Write back what changes of a stream."""
        values = {name: getattr(stream, name) for name in _CHANGING}
        self._connection.execute(_SAVING, {**values, **stream.bound})

    def _load(self, names: set[str]) -> None:
        """Load the streams that exist, and the headers that this attempt has sent of those in ``names``."""
        rank, attempt = self._attempt.rank, self._attempt.number
        if not self._streams:
            for row in fetch(self._connection, _STREAMS, {"of": self._state.run_id}):
                stream = StreamSource(*row)
                self._streams[stream.rank, stream.scaler] = stream
        mine = [self._streams[rank, name] for name in names if (rank, name) in self._streams]
        undescribed = [
            each.number
            for each in mine
            if each.scaler and (each.number, attempt) not in self._headers
        ]
        if undescribed:
            of = {"of": self._state.run_id, "attempt": attempt, "numbers": undescribed}
            for number, *fields in fetch(self._connection, _HEADERS, of):
                self._headers[number, attempt] = Header(*fields)

    def _create(self, layouts: Mapping[str, wire.Layout]) -> None:
        """Create those of this attempt's streams that do not exist, each with its layout."""
        rank = self._attempt.rank
        new = [name for name in layouts if (rank, name) not in self._streams]
        if not new:
            return
        # No other batch gets the same number: this transaction holds the lock on the run's row.
        last = next(reversed(self._streams.values()), None)
        if self._count + len(new) > STREAMS_MAX:
            raise BadBatch("headers", f"the run would have more than {STREAMS_MAX} streams")
        rows = []
        for number, name in enumerate(new, 0 if last is None else last.number + 1):
            row = (self._state.run_id, number, rank, name, layouts[name], 0, 0, None, None, 0, 0)
            rows.append((*row, self._attempt.number))
            self._streams[rank, name] = StreamSource(*rows[-1])
        insert_rows(self._connection, streams, rows)
        self.regrouped |= {name for name in new if name}

    def _describe(self, place: int, header: wire.StreamHeader) -> bool:
        """Apply a header to its stream. Return whether it must be stored.

        A process's first header may precede its sharded parameters, and may arrive again after the next header.
        """
        stream = self.mine(header.stream)
        held = self._headers.get((stream.number, self._attempt.number))
        packed = Header(
            header.scaler,
            header.device,
            int(header.enabled),
            "sharded" if held is not None and held.is_sharded else header.layout,
            header.sample,
            _settings(header),
            len(header.parameters),
            pack(header.parameters),
            pack(header.modules) if header.modules else None,
        )
        if held is not None and (held == packed or _is_shorter(place, header, held)):
            stream.header = held
            return False
        stream.header = self._headers[stream.number, self._attempt.number] = packed
        return True

    def _apply(self, new: Sequence[wire.StreamHeader]) -> None:
        """Update the run's row by what new headers imply for the whole run."""
        state = self._state
        for header in new:
            stream = self.mine(header.stream)
            is_later = self._attempt.number > stream.newest_attempt
            is_sharded = header.layout == "sharded" != stream.layout
            if is_later:
                stream.newest_attempt = self._attempt.number
            if is_sharded:
                # It stays so, although the samples of its other attempts are replicated.
                stream.layout = header.layout
                self.regrouped.add(header.stream)
            if is_later or is_sharded:
                self.save(stream)
            if stream is self.first:
                state.parameters, state.budget = len(header.parameters), header.budget
            state.exact = int(bool(state.exact) and _is_exact(header))
        state.disabled = int(not new[-1].enabled and self._count == 1)


def _is_exact(header: wire.StreamHeader) -> bool:
    """Whether every element is looked at, which is also so if no tensor is larger than the sample."""
    sample = header.sample
    return sample is None or all(parameter.numel <= sample for parameter in header.parameters)


def _settings(header: wire.StreamHeader) -> str:
    """JSON of how the scaler changes its scale, which a later header may update, and how the script created it."""
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    settings: dict[str, object] = {name: getattr(header, name) for name in names}
    if header.call is not None:
        settings |= {"arguments": header.call.arguments, "watched": header.call.watched}
    return json_text(settings)


def _is_shorter(place: int, header: wire.StreamHeader, held: Header) -> bool:
    """Whether a header is a resend with shorter lists than the stored ones. Raises BadBatch if the lists conflict."""
    growth = []
    for name, listed, known in (
        ("parameters", header.parameters, unpack_parameters(held.parameters)),
        ("modules", header.modules, unpack_modules(held.modules)),
    ):
        shared = min(len(known), len(listed))
        growth.append(len(listed) - len(known))
        if known[:shared] != listed[:shared] or min(growth) < 0 < max(growth):
            raise BadBatch(
                f"headers[{place}].{name}", "within an attempt, entries may only be appended"
            )
    return min(growth) < 0
