"""Decides which spools a sender may take: those of its machine, and those that were given up.

If a spool's process cannot be checked, silence decides whether its writer may still append.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ampmon.identity.process import Fate, ProcessIdentity
from ampmon.spool import layout
from ampmon.spool.state import Cursor, Destination, is_closed


ASK_EVERY_S = 0.5
SILENT_S = 600.0
"""A spool unchanged for this long counts as given up if its writer or claimant cannot be checked."""
LINGER_S = 60.0
"""Time in which a living writer notices a takeover of its spool. It checks every second, perhaps through a cache."""


class WriterLiveness:
    """The process that writes the spool at ``path``."""

    def __init__(
        self,
        path: Path,
        process: ProcessIdentity,
        clock: Callable[[], float],
        *,
        linger_s: float = LINGER_S,
    ) -> None:
        self._path = path
        self._process = process
        self._clock = clock
        self._asked_s = -ASK_EVERY_S
        self._settled_s = clock() + linger_s
        self._fate: Fate = "alive"
        self._over = False

    def is_over(self, *, asked_now: bool = False) -> bool:
        """Whether no record follows. Checks every `ASK_EVERY_S`, or if ``asked_now``. False for an unreadable spool."""
        now_s = self._clock()
        if not self._over and (asked_now or now_s - self._asked_s >= ASK_EVERY_S):
            self._asked_s = now_s
            with contextlib.suppress(OSError):
                self._over = self._ask()
        return self._over

    def is_alive(self) -> bool:
        """Whether the process was just seen running, with its spool open."""
        return self._fate == "alive" and not self._over

    def _ask(self) -> bool:
        self._fate = self._process.fate()
        return self._fate == "gone" or is_closed(self._path) or self._is_given_up()

    def _is_given_up(self) -> bool:
        """Whether the writer cannot be checked, was silent for long, and had time to notice a takeover of its spool."""
        return (
            self._fate == "unknown"
            and self._clock() >= self._settled_s
            and layout.claimant_of(self._path) is not None
            # `time_at` also changes the spool, which shows others that the claimant is still at work.
            and layout.time_at(self._path) - layout.last_written(self._path) >= SILENT_S
        )


def is_silent(path: Path) -> bool:
    """Whether the spool at ``path`` was not written, sent or taken over for `SILENT_S`. Raises OSError."""
    return layout.time_at(path.parent) - layout.last_changed(path) >= SILENT_S


class OwnedElsewhere(Exception):
    """The spool is another process's to send. The message says whose."""


def adopt(path: Path, destination: Destination) -> Path | None:
    """Return the path of a spool for this sender to send, after taking it over if needed. None if it is another's.

    Only this machine's one sender calls it. Spools of the machine's own processes keep their name. Raises OSError.
    """
    claimant = layout.claimant_of(path)
    process = claimant or destination.process
    if layout.is_mine(path):
        return path
    if claimant is None and process.fate() != "unknown":
        return path
    return layout.claim(path) if _is_abandoned(path, process) else None


def _is_abandoned(path: Path, process: ProcessIdentity) -> bool:
    """Whether the process is gone. If it cannot be checked: whether it gave the spool up.

    Then the spool was silent for long, and no sender runs at the process's place, as one does for live writers.
    """
    fate = process.fate()
    if fate != "unknown":
        return fate == "gone"
    status = path.parent.parent / "senders" / process.place() / "status"
    try:
        heard_s = layout.time_at(path.parent) - status.stat().st_mtime
    except FileNotFoundError:
        heard_s = SILENT_S
    return heard_s >= LINGER_S and is_silent(path)


def take(path: Path, destination: Destination, *, sender_at_work: bool) -> Path:
    """Take a spool over to send it once, unless its writer may still append. Return its path in either case.

    Raises OwnedElsewhere with the reason if another process sends it, and OSError.
    """
    claimant = layout.claimant_of(path)
    if layout.is_mine(path):
        return path
    process = claimant or destination.process
    may_live = not _is_abandoned(path, process)
    if claimant is not None and may_live:
        raise OwnedElsewhere(f"process {claimant.pid} of {claimant.host} took it over to send it")
    if may_live and not is_closed(path):
        if process.fate() == "alive" and sender_at_work and destination.mode == "online":
            raise OwnedElsewhere(
                f"process {destination.process.pid} is writing it, and its sender is running"
            )
        return path
    taken = layout.claim(path)
    if taken is None:
        raise OwnedElsewhere("another process has just taken it over")
    return taken


def orphans(directory: Path) -> dict[str, int]:
    """Spools of a data directory that no living process sends, with their unsent bytes. Reads little; never raises."""
    try:
        return {
            path.name: Cursor.bytes_left(path)
            for path in layout.spools(directory)
            if _is_orphan(path)
        }
    except OSError:
        return {}


def _is_orphan(path: Path) -> bool:
    destination = Destination.read(path)
    if destination is None or destination.mode != "online" or not layout.segments(path):
        return False
    return _is_abandoned(path, layout.claimant_of(path) or destination.process)
