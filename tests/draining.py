"""Sends the contents of the spools once, in the calling thread, and takes nothing over.

Its transports store batches without a network, or note what was acknowledged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ampmon import wire
from ampmon.errors import AmpmonError
from ampmon.sender.delivery import SpoolDelivery
from ampmon.spool import Destination, spools
from ampmon.transport import Transport
from ampmon_server.http.decoding import decode_batch


if TYPE_CHECKING:
    from ampmon_server.store import Store


@dataclass(slots=True)
class DrainReport:
    """The result of one pass over the spools. ``problems`` says, by spool, why bytes were left."""

    sent: int = 0
    rejected: int = 0
    corrupt: int = 0
    waiting_bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def drain(
    directory: Path,
    transport_for: Callable[[Destination], Transport],
    *,
    modes: tuple[str, ...] = ("online",),
    clock: Callable[[], float] = time.monotonic,
) -> DrainReport:
    """Send everything in the spools of ``directory`` now. A spool stops at its server's first failure.

    Blocks. May run beside a sender: a record that both send is stored once. Raises OSError if the directory cannot be
    read or written. Failures of a server are in the report.
    """
    report = DrainReport()
    for path in spools(directory):
        destination = Destination.read(path)
        if destination is not None and destination.mode in modes:
            transport = transport_for(destination)
            try:
                _drain_spool(SpoolDelivery(path, destination, transport, clock), report)
            finally:
                transport.close()
    return report


def _drain_spool(delivery: SpoolDelivery, report: DrainReport) -> None:
    before = delivery.cursor.rejected, delivery.cursor.corrupt
    try:
        while delivery.advance() == "sent":
            pass
    except AmpmonError as error:
        report.problems[delivery.path.name] = str(error)
    report.sent += delivery.sent
    report.rejected += delivery.cursor.rejected - before[0]
    report.corrupt += delivery.cursor.corrupt - before[1]
    report.waiting_bytes += delivery.waiting_bytes()


@dataclass(frozen=True)
class Into:
    """A transport straight into a store, without a network."""

    store: Store

    def send(self, batch: bytes) -> wire.Ack:
        return self.store.ingest(decode_batch(batch)).ack

    def close(self) -> None:
        """Do nothing: it holds no connection."""


@dataclass(frozen=True)
class Witness:
    """A transport that calls ``note`` with each acknowledged batch and its acknowledgement."""

    inner: Transport
    note: Callable[[wire.Batch, wire.Ack], object]

    def send(self, batch: bytes) -> wire.Ack:
        ack = self.inner.send(batch)
        self.note(decode_batch(batch), ack)
        return ack

    def close(self) -> None:
        self.inner.close()
