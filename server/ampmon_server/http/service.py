"""The objects that routes work with: the store, the keys, the bus, the writer and so on. Opened and closed together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Coroutine
from typing import Any, Literal

from ampmon_server.background.alert_sender import AlertSender
from ampmon_server.background.bus import Bus
from ampmon_server.background.diagnosis_worker import DiagnosisWorker
from ampmon_server.background.follower import BusFollower
from ampmon_server.background.forwarding.forwarder import Forwarder, opened
from ampmon_server.background.rejected_clients import RejectedClients
from ampmon_server.background.upkeep import keep_pruned
from ampmon_server.background.writer import TOGETHER_MAX, LastWrite, WriteQueue, Writer
from ampmon_server.http.auth.callers import Callers, Proofs
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.limits import Limits
from ampmon_server.http.auth.tokens import Logins, Sessions, Tokens
from ampmon_server.http.certificate import Certificate
from ampmon_server.http.metrics import Metrics
from ampmon_server.settings import Settings
from ampmon_server.store import Advance, Busy, Store, Unusable


Part = Literal["database", "schema", "bus"]
SHARED_WRITERS = 4
"""Write threads for a database that takes several writers: while one waits for the disk, the others work."""
_log = logging.getLogger(__name__)


class Service:
    """An open server, without its routes. Creates its data directory and its database if needed.

    Raises KeyProblem, BadCertificate, BadDestination or Unusable.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        destinations = opened(settings.forward)
        self.certificate = Certificate.of(settings)
        self.keys = Keys.load(settings.data_directory, settings.token_file)
        self.store = Store.open(settings)
        self.bus = Bus()
        self.follower: BusFollower | None = None
        """Delivers news of other server processes; None if no others can share the database."""
        if self.store.shared:
            self.follower = BusFollower(self.bus, self.store, self.store.notices())
            self.follower.start()
        self.writer = Writer(SHARED_WRITERS if self.store.shared else 1)
        # On PostgreSQL, one batch per transaction: a cluster has runs on several nodes.
        together = 1 if self.store.shared else TOGETHER_MAX
        self.line: WriteQueue[Any, Any] = WriteQueue(self.writer, together)
        """The batches that wait to be stored."""
        self.judge = DiagnosisWorker(
            self.store, self.writer, self.bus, settings.thresholds, settings.alerts
        )
        self.alert_sender = AlertSender(self.store, self.writer, self.bus, settings.alerts)
        self.forwarders = [
            Forwarder(*each, self.store, self.writer) for each in destinations.items()
        ]
        self.logins = Logins(self.store)
        self.tokens = Tokens(self.store)
        self.sessions = Sessions(self.store)
        self.callers = Callers(self.keys, self.tokens, self.sessions, settings)
        self.proofs = Proofs(self.keys, self.tokens, settings.allowed_hosts)
        self.limits = Limits(settings)
        self.metrics = Metrics()
        self.refusals = RejectedClients()
        self.last_write = LastWrite()
        self.leaving = threading.Event()
        """Set once the process begins to stop."""

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run beside requests until the server stops."""
        work = [keep_pruned(self.settings, self.store, self.writer)]
        if self.settings.judging:
            work.append(self.judge.keep_judging())
        work.append(self.alert_sender.keep_delivering())
        work += [each.keep_forwarding() for each in self.forwarders]
        if self.certificate is not None:
            work.append(self.certificate.keep())
        return work

    def publish(self, advance: Advance | None) -> None:
        """Announce a run's new version to its pages; nothing for None."""
        if advance is not None:
            self.bus.publish(advance)

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
