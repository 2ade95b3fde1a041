"""The objects that routes work with, opened and closed together, and how a route depends on them and on its caller.

The guard stores the caller in the request's state. Every route of a run depends on `OF_RUN` or `OF_OWN_RUN`. Routes of
lists pass the caller's projects on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from anyio import to_thread
from fastapi import Depends, Request

from ampmon_server.alerting.messages import Subject
from ampmon_server.background.alert_sender import AlertSender
from ampmon_server.background.bus import Bus
from ampmon_server.background.diagnosis_worker import DiagnosisWorker
from ampmon_server.background.follower import BusFollower
from ampmon_server.background.forwarding.forwarder import Forwarder, opened
from ampmon_server.background.upkeep import keep_pruned
from ampmon_server.background.writer import TOGETHER_MAX, LastWrite, WriteQueue, Writer
from ampmon_server.http.auth.access import Caller
from ampmon_server.http.auth.callers import Callers, Proofs
from ampmon_server.http.auth.keys import Keys
from ampmon_server.http.auth.limits import Limits
from ampmon_server.http.auth.tokens import Sessions, Tokens
from ampmon_server.http.certificate import Certificate
from ampmon_server.http.metrics import Metrics, RejectedClients
from ampmon_server.settings import Settings
from ampmon_server.store import Advance, NotFound, Store, StoreError, Unusable


Part = Literal["database", "schema", "bus"]
SHARED_WRITERS = 4
"""Write threads for a database that takes several writers: while one waits for the disk, the others work."""
EXPORTS_MAX = 2
"""Exports that run at once. One of the samples of 5000 parameters takes 300 MB."""
_log = logging.getLogger(__name__)


class Service:
    """An open server, without its routes. Creates its data directory and its database if needed.

    Raises ConfigurationError or Unusable.
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
            self.follower = BusFollower(self.bus, self.store)
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
        self.tokens = Tokens(self.store)
        self.sessions = Sessions(self.store)
        self.callers = Callers(self.keys, self.tokens, self.sessions, settings)
        self.proofs = Proofs(self.keys, self.tokens, settings.allowed_hosts)
        self.limits = Limits(settings)
        self.exports = asyncio.Semaphore(EXPORTS_MAX)
        self.metrics = Metrics()
        self.refusals = RejectedClients()
        self.last_write = LastWrite()
        self.leaving = threading.Event()
        """Set once the process begins to stop."""

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """What is to run beside requests until the server stops."""
        work = [keep_pruned(self.settings, self.store, self.writer)]
        if self.follower is not None:
            work.append(self.follower.keep_following())
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
        except Unusable as error:
            schema = str(error)
        except StoreError as error:
            _log.warning("Not ready: %s", error)  # only in the log: it may name host and user
            database, schema = (
                "The database does not answer.",
                "Unknown: the database does not answer.",
            )
            # The outage explains a failed write, and every look checks for an outage.
            self.last_write.note(failed=False)
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
        self.tokens.close()
        self.store.close()


# -- what routes depend on ---------------------------------------------------------------------------------------------


class NotAllowed(Exception):
    """The caller is known but may not do this; the scope `admin` would allow it."""


# A coroutine, like every dependency that never waits: FastAPI runs plain functions on threads.
async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDependency = Annotated[Service, Depends(_service)]


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CallerDependency = Annotated[Caller, Depends(_caller)]


async def _seen(run_id: UUID, caller: CallerDependency, service: ServiceDependency) -> None:
    """Raise NotFound for a run of a project that the caller does not see, as if it did not exist."""
    if caller.projects is not None:
        await to_thread.run_sync(_subject, service, caller, run_id)


OF_RUN = Depends(_seen)
"""Rejects callers who may not see the run. Costs no query for a caller who sees all projects."""


async def check_own(run_id: UUID, caller: CallerDependency, service: ServiceDependency) -> None:
    """Raise NotAllowed if the caller may not change a run, NotFound if the caller may not even see it."""
    if caller.may("admin") and caller.projects is None:
        return  # without a query, so that they can delete a run whose owner cannot be read
    run = await to_thread.run_sync(_subject, service, caller, run_id)
    if caller.may("admin") or run.owner == caller.owner:
        return
    # A token that may only send records must not learn that a run exists.
    if not caller.may("read"):
        raise _missing(run_id)
    raise NotAllowed("Changing a run needs its owner's token, or one with the scope `admin`.")


OF_OWN_RUN = Depends(check_own)
"""Rejects callers who may not see or change the run."""


async def _over_all(caller: CallerDependency) -> None:
    """Raise NotAllowed for a caller limited to some projects: a token that they make could open others."""
    if caller.projects is not None:
        raise NotAllowed("This needs a token with the scope `admin` over all projects.")


OVER_ALL = Depends(_over_all)


def visible(service: Service, caller: Caller, run_ids: Sequence[UUID]) -> list[UUID | None]:
    """Return the same ids, with None for each run that the caller may not see. Blocks."""
    if caller.projects is None:
        return list(run_ids)
    shown = service.store.versions(list(run_ids), len(run_ids), caller.projects)
    there = {each.run_id for each in shown}
    return [run_id if run_id in there else None for run_id in run_ids]


def _subject(service: Service, caller: Caller, run_id: UUID) -> Subject:
    subject = service.store.subject(run_id)
    if not caller.sees(subject.project):
        raise _missing(run_id)
    return subject


def _missing(run_id: UUID) -> NotFound:
    """The error for a missing run, and in the same words for one that the caller may not see."""
    return NotFound(f"There is no run {run_id}.")
