"""Doubles that behave like the real thing: a server in memory, and a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from ampmon import wire
from ampmon.config import Route
from ampmon.errors import HeaderMissing, Refused, Unreachable
from ampmon_server.http.decoding import TooLarge, UnsupportedVersion, decode_batch


class MemoryTransport:
    """A server in memory that takes batches like the real one: it stores each record once, however often it arrives.

    - ``down``: set it to make the server unreachable.
    - ``lose_acks``: the number of batches to store without an answer.
    - ``bytes_max``: larger batches are refused.
    - ``refuse``: a function of a record. A batch is refused if it returns True for any of its records.
    - ``findings``, ``request``, ``watched``: sent with each acknowledgement.

    `forget` loses the headers. Usable from several threads.
    """

    def __init__(self) -> None:
        self.route = Route()
        self.down = False
        self.lose_acks = 0
        self.bytes_max: int | None = None
        self.refuse: Callable[[wire.Record], bool] = lambda record: False
        self.findings: tuple[dict[str, Any], ...] | None = None
        self.request: int | None = None
        self.watched = True
        self.attempts = 0
        """Number of requests, answered or not."""
        self.batches: list[wire.Batch] = []
        """The stored batches, as they arrived."""
        self.headers: dict[UUID, dict[str, wire.Header]] = {}
        """By attempt, then by stream name; "" for the attempt itself."""
        self._records: dict[UUID, dict[tuple[str, int], wire.Record]] = {}
        self._ended: dict[UUID, str] = {}
        self._lock = threading.Lock()

    def send(self, batch: bytes) -> wire.Ack:
        """Like `ampmon.transport.Transport.send`."""
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
        """Do nothing: there is no connection to close."""

    def forget(self) -> None:
        """Lose the headers of all attempts, like a server with an empty database."""
        with self._lock:
            self.headers.clear()

    def records(self, attempt_id: UUID) -> list[wire.Record]:
        """The stored records of an attempt, in the order in which they first arrived."""
        with self._lock:
            return list(self._records.get(attempt_id, {}).values())

    def ended(self, attempt_id: UUID) -> str | None:
        """How the attempt ended, as the sender reported it; None before that."""
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
            acked=acked,
            version=len(self.batches),
            findings=self.findings,
            request=self.request,
            watched=self.watched,
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
