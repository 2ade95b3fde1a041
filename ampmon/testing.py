"""Fakes that behave like the real thing, for tests of ampmon and of code that uses it: a server, and a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.errors import HeaderMissing, Refused, Unreachable
from ampmon.wire.decoding import TooLarge, UnsupportedVersion, decode_batch


class MemoryTransport:
    """A server in memory that takes batches as the real one does: each record once, however often it comes.

    Set ``down`` to be unreachable, ``lose_acks`` to a number of batches that are to be stored but not answered,
    ``bytes_max`` to refuse larger batches, ``refuse`` to a function that picks records to refuse a batch for. `forget`
    loses the headers. Acknowledgements carry what ``findings`` and ``request`` are set to. Usable from several threads.
    """

    def __init__(self) -> None:
        self.down = False
        self.lose_acks = 0
        self.bytes_max: int | None = None
        self.refuse: Callable[[wire.Record], bool] = lambda record: False
        self.findings: tuple[dict[str, Any], ...] | None = None
        self.request: int | None = None
        self.attempts = 0
        """Requests made, answered or not."""
        self.batches: list[wire.Batch] = []
        """What was stored, as it came."""
        self.headers: dict[UUID, dict[str, wire.Header]] = {}
        """By attempt, then by the stream's name, "" for the attempt itself."""
        self._records: dict[UUID, dict[tuple[str, int], wire.Record]] = {}
        self._ended: dict[UUID, str] = {}
        self._lock = threading.Lock()

    def send(self, batch: bytes, records: int) -> wire.Ack:
        """As `ampmon.transport.Transport.send`."""
        with self._lock:
            self.attempts += 1
            if self.down:
                raise Unreachable("the server is down")
            if self.bytes_max is not None and len(batch) > self.bytes_max:
                raise Refused(f"{len(batch)} bytes are too many", 413)
            decoded = self._accepted(batch)
            ack = self._store(decoded)
            if self.lose_acks > 0:
                self.lose_acks -= 1
                raise Unreachable("the connection broke before the answer")
            return ack

    def close(self) -> None:
        """Nothing is held."""

    def forget(self) -> None:
        """Lose the headers of all attempts, as a server with an empty database has."""
        with self._lock:
            self.headers.clear()

    def records(self, attempt_id: UUID) -> list[wire.Record]:
        """What is stored of an attempt, in the order in which it first came."""
        with self._lock:
            return list(self._records.get(attempt_id, {}).values())

    def ended(self, attempt_id: UUID) -> str | None:
        """What the sender said of the attempt's end."""
        return self._ended.get(attempt_id)

    def _accepted(self, body: bytes) -> wire.Batch:
        try:
            batch = decode_batch(body)
        except (msgspec.DecodeError, TooLarge, UnsupportedVersion) as error:
            raise Refused(str(error), 400) from error
        if any(self.refuse(record) for record in batch.records):
            raise Refused("a record is not acceptable", 422)
        known = {_key(header) for header in batch.headers} | set(
            self.headers.get(batch.attempt_id, ())
        )
        needed = {"", *(record.stream for record in batch.records)}
        if missing := needed - known:
            raise HeaderMissing(f"no header for {sorted(missing)}")
        return batch

    def _store(self, batch: wire.Batch) -> wire.Ack:
        headers = self.headers.setdefault(batch.attempt_id, {})
        headers.update((_key(header), header) for header in batch.headers)
        stored = self._records.setdefault(batch.attempt_id, {})
        for record in batch.records:
            stored.setdefault((record.stream, record.seq), record)
        if batch.ended is not None:
            self._ended[batch.attempt_id] = batch.ended
        self.batches.append(batch)
        acked: dict[str, int] = {}
        for record in batch.records:
            acked[record.stream] = max(record.seq, acked.get(record.stream, 0))
        return wire.Ack(
            acked=acked, version=len(self.batches), findings=self.findings, request=self.request
        )


def _key(header: wire.Header) -> str:
    return header.stream if isinstance(header, wire.StreamHeader) else ""


class ManualClock:
    """A monotonic clock that moves only by `advance`. Call it for the time in seconds."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
