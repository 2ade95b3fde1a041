"""Two servers that the state machine breaks in the same ways: the in-memory one that ampmon ships, and the real one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.errors import Unreachable
from ampmon.transport import HttpTransport, Transport
from ampmon_server.store.pages.pages import PagedSeries
from ampmon_server.store.updates import scalars, updates
from campaigns.faults.life import Key
from campaigns.soak.proxy import Fault, Proxy
from databases import defects
from doubles import MemoryTransport
from threaded_server import ThreadedServer


DECODED_BYTES_MAX = 2**22


class Account(Protocol):
    """The records of an attempt."""

    id: UUID
    records: dict[Key, bytes]


class Backend(Protocol):
    """A server and the network in front of it."""

    faults: tuple[Fault, ...]
    """The faults that a request can meet."""

    def transport(self) -> Transport:
        """Open a new connection."""

    def up(self, *, up: bool) -> None: ...

    def meet(self, fault: Fault) -> None:
        """Apply a fault to the next request."""

    def limit(self, bytes_max: int) -> None:
        """Reject larger batches from now on."""

    def restart(self) -> None: ...

    def empty(self) -> None:
        """Restart with an empty database."""

    def stored(self) -> set[Key]: ...

    def check(
        self, lives: Iterable[Account], stored: set[Key], aside: Set[Key] = frozenset()
    ) -> None:
        """Compare what is stored with what was recorded, value by value, and check that it is consistent."""

    def close(self) -> None: ...


class InMemory:
    """`doubles.MemoryTransport`, with the faults that need no socket."""

    faults: tuple[Fault, ...] = ("drop", "lose_ack", "repeat")

    def __init__(self, directory: Path) -> None:
        self._server = MemoryTransport()
        self._faults: list[Fault] = []

    def transport(self) -> Transport:
        return self

    def send(self, batch: bytes) -> wire.Ack:
        fault = self._faults.pop(0) if self._faults else "pass"
        if fault == "drop":
            raise Unreachable("dropped")
        if fault == "lose_ack" and not self._server.down:
            self._server.lose_acks = 1
        if fault == "repeat":
            self._server.send(batch)
        return self._server.send(batch)

    def up(self, *, up: bool) -> None:
        self._server.down = not up

    def meet(self, fault: Fault) -> None:
        self._faults.append(fault)

    def limit(self, bytes_max: int) -> None:
        self._server.bytes_max = bytes_max

    def restart(self) -> None:
        """Do nothing: a restart would lose nothing."""

    def empty(self) -> None:
        down, bytes_max = self._server.down, self._server.bytes_max
        self._server = MemoryTransport()
        self._server.down, self._server.bytes_max = down, bytes_max

    def stored(self) -> set[Key]:
        return {key for key, _ in self._records()}

    def _records(self) -> list[tuple[Key, wire.Record]]:
        return [
            ((attempt, record.stream, record.seq), record)
            for attempt in self._server.headers
            for record in self._server.records(attempt)
        ]

    def check(
        self, lives: Iterable[Account], stored: set[Key], aside: Set[Key] = frozenset()
    ) -> None:
        recorded = {key: payload for life in lives for key, payload in life.records.items()}
        for key, record in self._records():
            whole = wire.decode(recorded[key])
            # An update that is too large is delivered without its samples, and set aside complete.
            assert record == whole or (key in aside and record == wire.without_samples(whole))

    def close(self) -> None: ...


class Real:
    """The real app on a real SQLite file, behind a real proxy."""

    faults: tuple[Fault, ...] = (
        "drop",
        "reset",
        "cut_request",
        "repeat",
        "echo",
        "lose_ack",
        "cut_answer",
        "hang_up",
        "error",
        "busy",
        "garbage",
        "nonsense",
        "redirect",
    )

    def __init__(self, directory: Path) -> None:
        self._proxy = Proxy(9)
        self._server = ThreadedServer(
            directory,
            decoded_bytes_max=DECODED_BYTES_MAX,
            allowed_hosts=(f"127.0.0.1:{self._proxy.port}",),
        )
        self._proxy.upstream = self._server.port
        self._proxy.delay_s = 0.001

    def transport(self) -> Transport:
        return HttpTransport(self._proxy.url, token_file=self._server.token_file)

    def up(self, *, up: bool) -> None:
        self._proxy.upstream = self._server.port if up else 9

    def meet(self, fault: Fault) -> None:
        self._proxy.next(fault)

    def limit(self, bytes_max: int) -> None:
        self._server.stop()
        self._server.start(decoded_bytes_max=bytes_max)

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def empty(self) -> None:
        self._server.stop()
        self._server.empty()
        self._server.start()

    def stored(self) -> set[Key]:
        ranges = self._server.rows(
            "SELECT attempt_id, scaler, first_seq, last_seq FROM ledger"
            " JOIN streams USING (run_id, stream) JOIN attempts USING (run_id, rank, attempt)"
        )
        keys = [
            (UUID(bytes=attempt), scaler, seq)
            for attempt, scaler, first, last in ranges
            for seq in range(first, last + 1)
        ]
        assert len(keys) == len(set(keys))
        return set(keys)

    def lost(self, run_id: UUID) -> int:
        """The number of a run's records that the server counts as lost."""
        rows = self._server.rows(f"SELECT lost FROM runs WHERE run_id = x'{run_id.hex}'")
        return int(rows[0][0]) if rows else 0

    def check(
        self, lives: Iterable[Account], stored: set[Key], aside: Set[Key] = frozenset()
    ) -> None:
        """Check that rows match the records in the ledger one to one, and that cells and totals match the rows."""
        rows, expected = self._rows(), _rows_of(lives, stored)
        for kind, wanted in expected.items():
            assert rows[kind] == wanted, f"{kind}: {set(rows[kind]) ^ set(wanted)}"
        assert not (found := defects(self._server.settings)), "\n".join(found)

    def _rows(self) -> dict[str, list[tuple[object, ...]]]:
        of = "JOIN streams USING (run_id, stream) JOIN attempts USING (run_id, rank, attempt)"
        return {
            "events": sorted(
                (UUID(bytes=attempt), *row)
                for attempt, *row in self._server.rows(
                    f"SELECT attempt_id, scaler, seq, kind, detail FROM events {of}"
                    " WHERE kind != 'resume'"
                )
            ),
            "updates": sorted(
                (attempt, ordinal, skipped)
                for attempt, _, ordinal, skipped in self._paged(updates.PAGES, "skipped")
            ),
            "scalars": sorted(
                (attempt, ordinal, name, value)
                for attempt, name, ordinal, value in self._paged(scalars.PAGES, "value")
            ),
        }

    def _paged(self, paged: PagedSeries, column: str) -> Iterator[tuple[UUID, str, int, Any]]:
        """Each row's attempt, series name, ordinal, and value of ``column``."""
        attempts = {
            (run_id, stream, attempt): (UUID(bytes=attempt_id), origin)
            for run_id, stream, attempt, attempt_id, origin in self._server.rows(
                "SELECT run_id, stream, attempt, attempt_id, origin"
                " FROM attempts JOIN streams USING (run_id, rank)"
            )
        }
        for run_id, stream, name, rows in self._server.pages(paged):
            for step, attempt, value in rows[["step", "attempt", column]].tolist():
                attempt_id, origin = attempts[run_id, stream, attempt]
                yield attempt_id, name, step - origin, value

    def close(self) -> None:
        self._proxy.close()
        self._server.close()


def _rows_of(lives: Iterable[Account], stored: set[Key]) -> dict[str, list[tuple[object, ...]]]:
    """The rows that the ``stored`` records make. Of values logged twice for a step, the last counts."""
    events, steps, values = [], [], {}
    for life in lives:
        for key, payload in life.records.items():
            if key not in stored:
                continue
            record = wire.decode(payload)
            if isinstance(record, wire.Event):
                detail = msgspec.json.encode(record.detail).decode()
                events.append((life.id, record.stream, record.seq, record.kind, detail))
            elif isinstance(record, wire.Update):
                skipped = sum(step.skipped for step in record.optimizers)
                steps.append((life.id, record.ordinal, skipped))
            else:
                for name, value in record.values.items():
                    values[life.id, record.ordinal, name] = value
    return {
        "events": sorted(events),
        "updates": sorted(steps),
        "scalars": sorted((*key, value) for key, value in values.items()),
    }
