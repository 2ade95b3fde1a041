"""The objects that routes work with: the store, the keys, the bus, the writer and so on. Opened and closed together."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from ampmon_server.background.alert_sender import AlertSender
from ampmon_server.background.bus import Bus, BusFollower
from ampmon_server.background.diagnosis_worker import DiagnosisWorker
from ampmon_server.background.forwarding import Forwarder, opened
from ampmon_server.background.rejected_clients import RejectedClients
from ampmon_server.background.writer import LastWrite, WriteQueue, Writer
from ampmon_server.http.auth import Callers, Keys, Limits, Logins, Proofs, Sessions, Tokens
from ampmon_server.http.certificate import Certificate
from ampmon_server.settings import Settings
from ampmon_server.store import Store


SHARED_WRITERS = 4
"""Write threads for a database that takes several writers: while one waits for the disk, the others work."""


@dataclass(frozen=True, slots=True)
class Service:
    """An open server, without its routes."""

    settings: Settings
    store: Store
    keys: Keys
    logins: Logins
    tokens: Tokens
    sessions: Sessions
    callers: Callers
    proofs: Proofs
    limits: Limits
    bus: Bus
    writer: Writer
    line: WriteQueue[Any, Any]
    """The batches that wait to be stored."""
    judge: DiagnosisWorker
    alert_sender: AlertSender
    forwarders: tuple[Forwarder, ...]
    follower: BusFollower | None = None
    """Delivers news of other server processes; None if no others can share the database."""
    certificate: Certificate | None = None
    """The server's TLS certificate; None for plain HTTP."""
    refusals: RejectedClients = field(default_factory=RejectedClients)
    last_write: LastWrite = field(default_factory=LastWrite)
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set once the process begins to stop."""

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Open the data directory and the database, and create them if needed.

        Raises KeyProblem, BadCertificate, BadDestination or Unusable.
        """
        destinations = opened(settings.forward)
        certificate = Certificate.of(settings)
        keys = Keys.load(settings.data_directory, settings.token_file)
        store, bus, follower = Store.open(settings), Bus(), None
        if store.shared:
            follower = BusFollower(bus, store, store.notices())
            follower.start()
        writer = Writer(SHARED_WRITERS if store.shared else 1)
        judge = DiagnosisWorker(store, writer, bus, settings.thresholds, settings.alerts)
        alert_sender = AlertSender(store, writer, bus, settings.alerts)
        tokens = Tokens(store)
        sessions = Sessions(store)
        callers = Callers(keys, tokens, sessions, settings)
        proofs = Proofs(keys, tokens, settings.allowed_hosts)
        logins = Logins(store)
        return cls(
            settings,
            store,
            keys,
            logins,
            tokens,
            sessions,
            callers,
            proofs,
            Limits(settings),
            bus,
            writer,
            # On PostgreSQL, one batch per transaction: a cluster has runs on several nodes.
            WriteQueue(writer, 1) if store.shared else WriteQueue(writer),
            judge,
            alert_sender,
            tuple(Forwarder(*each, store, writer) for each in destinations.items()),
            follower,
            certificate,
        )

    def close(self) -> None:
        self.bus.close()
        self.judge.close()
        self.writer.close()
        if self.follower is not None:
            self.follower.close()
        self.tokens.close()
        self.store.close()
