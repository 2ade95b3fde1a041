"""Which spools of a data directory a sender may take: its machine's own, and those that were given up."""

from __future__ import annotations

from pathlib import Path

from ampmon.identity import ProcessIdentity
from ampmon.sender.author import LINGER_S, SILENT_S, is_closed, is_silent
from ampmon.spool import Cursor, Destination, claim, claimant_of, is_mine, segments, spools, time_at


class LeftAlone(Exception):
    """A spool is somebody else's to send; the message says whose."""


def adopt(path: Path, destination: Destination) -> Path | None:
    """Where the spool at ``path`` lies now that it is this process's to send; None where it is somebody else's.

    For the sender of this machine, of which there is one: what a process of the machine writes or wrote is its own, and
    keeps its name. Raises OSError.
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
    """Whether a spool was silent for long, and no sender works where its process is: that one stays with who lives."""
    status = path.parent.parent / "senders" / process.place() / "status"
    try:
        heard_s = time_at(path.parent) - status.stat().st_mtime
    except FileNotFoundError:
        heard_s = SILENT_S
    return heard_s >= LINGER_S and is_silent(path)


def take(path: Path, destination: Destination, *, sender_at_work: bool) -> Path:
    """Where the spool at ``path`` lies now that it may be sent once, by whoever was asked to.

    It is taken over, but from a writer that lives or may live: there it keeps its name. Raises LeftAlone, saying why,
    where somebody else sends it, and OSError.
    """
    claimant = claimant_of(path)
    if is_mine(path):
        return path
    process = claimant or destination.process
    fate = process.fate()
    may_live = fate == "alive" or (fate == "unknown" and not _is_given_up(path, process))
    if claimant is not None and may_live:
        raise LeftAlone(f"process {claimant.pid} of {claimant.host} took it over to send it")
    if may_live and not is_closed(path):
        if fate == "alive" and sender_at_work and destination.mode == "online":
            raise LeftAlone(f"process {destination.process.pid} writes it, and its sender works")
        return path
    taken = claim(path)
    if taken is None:
        raise LeftAlone("another process has just taken it over")
    return taken


def orphans(directory: Path) -> dict[str, int]:
    """The spools in a data directory that no living process sees to, and how much of each is to be sent, in bytes.

    Reads little, and does not raise.
    """
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
