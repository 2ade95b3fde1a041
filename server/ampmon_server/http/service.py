"""The objects that routes work with: the store, the keys, the bus, the writer and so on. Opened and closed together."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from ampmon_server.background.alert_sender import AlertSender
from ampmon_server.background.bus import Bus, BusFollower
from ampmon_server.background.diagnosis_worker import DiagnosisWorker
from ampmon_server.background.forwarding import Forwarder, opened
from ampmon_server.background.rejected_clients import RejectedClients
from ampmon_server.background.writer import LastWrite, WriteQueue, Writer
from ampmon_server.http.auth.callers import Callers, Proofs
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.limits import Limits
from ampmon_server.http.auth.tokens import Logins, Sessions, Tokens
from ampmon_server.http.certificate import Certificate
from ampmon_server.http.metrics import Metrics
from ampmon_server.settings import Settings
from ampmon_server.store import Busy, Store, Unusable


Part = Literal["database", "schema", "bus"]
SHARED_WRITERS = 4
"""Write threads for a database that takes several writers: while one waits for the disk, the others work."""
_log = logging.getLogger(__name__)


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
    metrics: Metrics = field(default_factory=Metrics)
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

    def readiness(self) -> dict[Part, str | None]:
        """Say why each part cannot be used, without names of hosts, users or files; None for a part that can.

        Blocks on one small query to the database.
        """
        database = schema = None
        try:
            self.store.check()
            if self.last_write.failed:
                database = "The last batch could not be written: see the log."
        except Busy as error:
            _log.warning("Not ready: %s", error)  # only in the log: it may name host and user
            database, schema = (
                "The database does not answer.",
                "Unknown: the database does not answer.",
            )
            # The outage explains a failed write, and every look checks for an outage.
            self.last_write.note(failed=False)
        except Unusable as error:
            schema = str(error)
        return {"database": database, "schema": schema, "bus": self._bus_trouble()}

    def _bus_trouble(self) -> str | None:
        if self.leaving.is_set() or self.bus.closed:
            return "The server is stopping."
        if self.follower is not None and self.follower.trouble is not None:
            return "Cannot read updates from the other server processes."  # the log says why
        return None

    def close(self) -> None:
        self.bus.close()
        self.judge.close()
        self.writer.close()
        if self.follower is not None:
            self.follower.close()
        self.tokens.close()
        self.store.close()
