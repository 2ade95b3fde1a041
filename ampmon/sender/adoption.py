"""Which spools of a data directory a sender may take: its machine's own, and those that were given up."""

from __future__ import annotations

from pathlib import Path

from ampmon.sender.author import is_closed, is_silent
from ampmon.spool import Cursor, Destination, claim, claimant_of, is_mine, segments, spools


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
    if fate == "gone" or (fate == "unknown" and is_silent(path)):
        return claim(path)
    return None


def take(path: Path, destination: Destination, *, sender_at_work: bool) -> Path:
    """Where the spool at ``path`` lies now that it may be sent once, by whoever was asked to.

    It is taken over, but from a writer that lives or may live: there it keeps its name. Raises LeftAlone, saying why,
    where somebody else sends it, and OSError.
    """
    claimant = claimant_of(path)
    if is_mine(path):
        return path
    fate = (claimant or destination.process).fate()
    may_live = fate == "alive" or (fate == "unknown" and not is_silent(path))
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
    return fate == "gone" or (fate == "unknown" and is_silent(path))
