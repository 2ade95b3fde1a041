"""What the sender says about itself: the file `status` among its own in the data directory, a few hundred bytes."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from ampmon.sender.election import home
from ampmon.system import private


_NAME = "status"
STALE_AFTER_S = 10.0
"""The sender rewrites its status every second: one this old is of a sender that is gone."""


class DestinationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands with one server. Times are microseconds since the epoch.

    ``since`` is when the server last took a batch or, failing that, when it was first asked. ``problem`` says why
    records wait, None where they do not.
    """

    url: str
    problem: str | None
    since: int
    waiting_bytes: int
    rejected: int
    corrupt: int

    @property
    def reachable(self) -> bool:
        return self.problem is None


class SenderStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the sender last wrote, ``updated`` microseconds after the epoch."""

    pid: int
    updated: int
    destinations: tuple[DestinationStatus, ...]

    def problem(self, url: str) -> str | None:
        """Why records for the server at ``url`` wait, or None where nothing is known to be wrong."""
        for destination in self.destinations:
            if destination.url == url and destination.problem is not None:
                return destination.problem
        return None

    def write(self, directory: Path) -> None:
        """Put it in the place of the one before. Raises OSError."""
        private.replace(home(directory) / _NAME, msgspec.json.encode(self), durable=False)


def status(directory: Path) -> SenderStatus | None:
    """What this machine's sender of ``directory`` last wrote; None where there is none or it is older than 10 s.

    Reads one small file; never raises.
    """
    try:
        found = msgspec.json.decode((home(directory) / _NAME).read_bytes(), type=SenderStatus)
    except (OSError, msgspec.DecodeError):
        return None
    age_s = time.time() - found.updated / 1e6
    return found if abs(age_s) <= STALE_AFTER_S else None


def clear_status(directory: Path) -> None:
    """Leave none behind: nobody is at work any more."""
    (home(directory) / _NAME).unlink(missing_ok=True)
