"""Checks the parts of a server. Its messages contain no name of a host, a user or a file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ampmon_server.http.service import Service
from ampmon_server.store import Busy, Unusable


Part = Literal["database", "schema", "bus"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Readiness:
    """The state of the server. ``parts`` says why each part cannot be used; None for a part that can."""

    parts: Mapping[Part, str | None]

    @property
    def trouble(self) -> str | None:
        """The first problem; None if the server is ready."""
        return next((why for why in self.parts.values() if why is not None), None)


def look(service: Service) -> Readiness:
    """Check the parts. Blocks on one small query to the database."""
    database = schema = None
    try:
        service.store.check()
        if service.last_write.failed:
            database = "The last batch could not be written: see the log."
    except Busy as error:
        _log.warning("Not ready: %s", error)  # only in the log: it may name host and user
        database, schema = "The database does not answer.", "Unknown: the database does not answer."
        # The outage explains a failed write, and every look checks for an outage.
        service.last_write.note(failed=False)
    except Unusable as error:
        schema = str(error)
    return Readiness({"database": database, "schema": schema, "bus": _bus(service)})


def _bus(service: Service) -> str | None:
    if service.leaving.is_set() or service.bus.closed:
        return "The server is stopping."
    if service.follower is not None and service.follower.trouble is not None:
        return "Cannot read updates from the other server processes."  # the log says why
    return None
