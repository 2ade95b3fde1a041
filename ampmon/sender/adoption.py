"""Decides which spools a sender may take: those of its machine, and those that were given up."""

from __future__ import annotations

from pathlib import Path

from ampmon.identity import ProcessIdentity
from ampmon.sender.writer_liveness import LINGER_S, SILENT_S, is_closed, is_silent
from ampmon.spool import Cursor, Destination, claim, claimant_of, is_mine, segments, spools, time_at


class OwnedElsewhere(Exception):
    """The spool is another process's to send. The message says whose."""


def adopt(path: Path, destination: Destination) -> Path | None:
    """Return the path of a spool for this sender to send, after taking it over if needed. None if it is another's.

    Only this machine's one sender calls it. Spools of the machine's own processes keep their name. Raises OSError.
    """
    claimant = claimant_of(path)
    if is_mine(path):
        return path
    fate = (claimant or destination.process).fate()
    if claimant is None and fate != "unknown":
        return path
    if fate == "gone" or (
        fate == "unknown" and _is_given_up(path, claimant or destination.process)
    ):
        return claim(path)
    return None


def _is_given_up(path: Path, process: ProcessIdentity) -> bool:
    """Whether the spool was silent for long and no sender runs at its process's place, as one does for live writers."""
    status = path.parent.parent / "senders" / process.place() / "status"
    try:
        heard_s = time_at(path.parent) - status.stat().st_mtime
    except FileNotFoundError:
        heard_s = SILENT_S
    return heard_s >= LINGER_S and is_silent(path)


def take(path: Path, destination: Destination, *, sender_at_work: bool) -> Path:
    """Take a spool over to send it once, unless its writer may still append. Return its path in either case.

    Raises OwnedElsewhere with the reason if another process sends it, and OSError.
    """
    claimant = claimant_of(path)
    if is_mine(path):
        return path
    process = claimant or destination.process
    fate = process.fate()
    may_live = fate == "alive" or (fate == "unknown" and not _is_given_up(path, process))
    if claimant is not None and may_live:
        raise OwnedElsewhere(f"process {claimant.pid} of {claimant.host} took it over to send it")
    if may_live and not is_closed(path):
        if fate == "alive" and sender_at_work and destination.mode == "online":
            raise OwnedElsewhere(
                f"process {destination.process.pid} is writing it, and its sender is running"
            )
        return path
    taken = claim(path)
    if taken is None:
        raise OwnedElsewhere("another process has just taken it over")
    return taken


def orphans(directory: Path) -> dict[str, int]:
    """Spools of a data directory that no living process sends, with their unsent bytes. Reads little; never raises."""
    try:
        return {
            path.name: Cursor.bytes_left(path) for path in spools(directory) if _is_orphan(path)
        }
    except OSError:
        return {}


def _is_orphan(path: Path) -> bool:
    destination = Destination.read(path)
    if destination is None or destination.mode != "online" or not segments(path):
        return False
    fate = (claimant_of(path) or destination.process).fate()
    return fate == "gone" or (
        fate == "unknown" and _is_given_up(path, claimant_of(path) or destination.process)
    )
