"""The sender's status: the file `status`, a few hundred bytes, in the sender's folder of the data directory."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from uuid import UUID

import msgspec

from ampmon.sender.election import home
from ampmon.system import private


_NAME = "status"
STALE_AFTER_S = 10.0
"""The sender rewrites its status every second. An older one is left over from a sender that is gone."""


class DestinationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one server for the runs with one token.

    ``token_id`` is `token_id` of a token that was given explicitly, or None for the data directory's. ``problem`` says
    why all records wait, or None. ``refused`` says why those of single spools do, by the spool's name.
    """

    url: str
    token_id: str | None = None
    problem: str | None
    waiting_bytes: int
    refused: dict[str, str] = {}


class SenderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's last status. ``updated`` is microseconds since the epoch."""

    pid: int
    updated: int
    destinations: tuple[DestinationStatus, ...]

    def problem(
        self, url: str, attempt_id: UUID | None = None, *, token: str | None = None
    ) -> str | None:
        """Why records for the server at ``url`` wait, or only those of an attempt. None if no problem is known."""
        server = url, token_id(token)
        for destination in self.destinations:
            if (destination.url, destination.token_id) == server and destination.problem:
                return destination.problem
            for name, problem in destination.refused.items():
                if attempt_id is not None and name.startswith(attempt_id.hex):
                    return problem
        return None

    def write(self, directory: Path) -> None:
        """Replace the last status. Raises OSError."""
        private.replace(home(directory) / _NAME, msgspec.json.encode(self), durable=False)


def token_id(token: str | None) -> str | None:
    """Return what tells tokens apart, without the secret."""
    if token is None:
        return None
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()[:16]


def status(directory: Path) -> SenderStatus | None:
    """The last status of this machine's sender of ``directory``, or None if there is none or it is older than 10 s.

    Reads one small file; never raises.
    """
    try:
        found = msgspec.json.decode((home(directory) / _NAME).read_bytes(), type=SenderStatus)
    except (OSError, msgspec.DecodeError):
        return None
    # A status from the future is stale too: the clock was set back since.
    age_s = time.time() - found.updated / 1e6
    return found if abs(age_s) <= STALE_AFTER_S else None


def clear_status(directory: Path) -> None:
    (home(directory) / _NAME).unlink(missing_ok=True)
