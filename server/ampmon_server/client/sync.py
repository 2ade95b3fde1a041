"""Sends spools once on request, taking over those whose process is gone, and reports progress. Needs no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ampmon.errors import AmpmonError, Unreachable
from ampmon.sender import election
from ampmon.sender.adoption import OwnedElsewhere, take
from ampmon.sender.backoff import LOCAL_FIRST_S, Backoff
from ampmon.sender.delivery import SpoolDelivery
from ampmon.spool import layout
from ampmon.spool.layout import Position
from ampmon.spool.state import REJECTED, Cursor, Destination
from ampmon.transport import Transport


LINGER_S = 2.0
"""Time in which a living writer notices a takeover of its spool. It checks every second."""
TRIES = 6
"""Attempts in a row, over about 3 s, before a server's spools are left for another time."""
_POLL_S = 0.1


@dataclass(slots=True)
class SpoolOutcome:
    """The outcome of one spool: ``records`` were sent, ``rejected`` were refused, of which a file lacks ``discarded``.

    ``left_bytes`` on disk are not sent, and ``problem`` says why. ``kept`` says why a fully sent spool stays on disk.
    ``url`` is the server that the spool names.
    """

    path: Path
    left_bytes: int
    url: str = ""
    records: int = 0
    rejected: int = 0
    discarded: int = 0
    corrupt: int = 0
    problem: str | None = None
    kept: str | None = None


def spools_at(directory: Path) -> list[Path] | None:
    """The spools of a data directory, a folder of spools or a single spool. None for anything else. Raises OSError."""
    if layout.attempt_id_of(directory) is not None and directory.is_dir():
        return [directory]
    if (directory / "spool").is_dir():
        return layout.spools_in(directory / "spool")
    return layout.spools_in(directory) or None


class Sync:
    """Sends the spools ``paths`` once. Calls ``on_batch`` after every batch."""

    def __init__(
        self,
        paths: list[Path],
        transport_for: Callable[[Destination], Transport],
        *,
        on_batch: Callable[[Sync], None] = lambda sync: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outcomes = [SpoolOutcome(path, Cursor.bytes_left(path)) for path in paths]
        self._transport_for = transport_for
        self._on_batch = on_batch
        self._clock = clock
        self._taken_s = clock()
        self._away: dict[tuple[str, str | None], str] = {}
        """By URL and token, why a server is not tried again."""
        self.bytes = self.left_bytes
        """Bytes on disk that were to be sent at the start."""

    @property
    def left_bytes(self) -> int:
        """Bytes not sent yet, including those given up."""
        return sum(outcome.left_bytes for outcome in self._outcomes)

    @property
    def records(self) -> int:
        return sum(outcome.records for outcome in self._outcomes)

    def run(self) -> Iterator[SpoolOutcome]:
        """Send each spool, then yield its outcome if it had something to send or a problem.

        Blocks for the requests. If this is interrupted, what was acknowledged stays acknowledged.
        """
        found = [(outcome, self._take(outcome)) for outcome in self._outcomes]
        self._taken_s = self._clock()
        for outcome, destination in found:
            idle = outcome.left_bytes == 0
            if destination is not None:
                self._send(outcome, destination)
            if outcome.problem or outcome.records or outcome.rejected or not idle:
                yield outcome

    def _take(self, outcome: SpoolOutcome) -> Destination | None:
        """Take a spool over. Return its destination, or None if it cannot be sent now."""
        path = outcome.path
        destination = Destination.read(path)
        try:
            if not path.exists() or not layout.segments(path):
                outcome.left_bytes = 0  # already sent
                return None
            if destination is None:
                outcome.problem = "its server is unknown: the file `destination` is missing"
                return None
            at_work = election.is_held(path.parent.parent)
            outcome.path = take(path, destination, sender_at_work=at_work)
        except OwnedElsewhere as left:
            outcome.problem = str(left) if outcome.left_bytes else None
            return None
        except OSError as error:
            outcome.problem = f"{error.strerror or error}: copy it to a writable directory"
            return None
        return destination

    def _send(self, outcome: SpoolOutcome, destination: Destination) -> None:
        outcome.url = destination.url
        server = destination.url, destination.token
        if (known := self._away.get(server)) is not None:
            outcome.problem = known
            return
        transport = self._transport_for(destination)
        linger_s = self._taken_s + LINGER_S - self._clock()
        try:
            whole = self._deliver(
                SpoolDelivery(outcome.path, destination, transport, self._clock, linger_s=linger_s),
                outcome,
            )
        except Unreachable as error:
            self._away[server] = outcome.problem = str(error)
        except (AmpmonError, OSError) as error:
            outcome.problem = str(error)
        else:
            _explain(outcome, whole=whole)
        finally:
            transport.close()

    def _deliver(self, delivery: SpoolDelivery, outcome: SpoolOutcome) -> bool:
        """Send what a spool holds now, since a live process may write forever. Return whether all of it was sent."""
        end = layout.end_of(delivery.path)
        backoff, tries = Backoff(self._clock, first_s=LOCAL_FIRST_S), 0
        before = delivery.cursor
        progress = ""
        while progress != "done":
            try:
                progress = delivery.advance()
            except Unreachable as error:
                tries += 1
                if tries == TRIES:
                    raise
                backoff.failed(error.retry_after_s)
            else:
                tries = 0
                backoff.succeeded()
                if self._is_enough(delivery, progress, end):
                    break
            finally:
                outcome.records = delivery.sent
                outcome.rejected = delivery.cursor.rejected - before.rejected
                outcome.discarded = delivery.cursor.discarded - before.discarded
                outcome.corrupt = delivery.cursor.corrupt - before.corrupt
                outcome.left_bytes = delivery.waiting_bytes()
                self._on_batch(self)
            time.sleep(_POLL_S if progress == "quiet" else backoff.remaining_s())
        return delivery.cursor.position >= end

    def _is_enough(self, delivery: SpoolDelivery, progress: str, end: Position) -> bool:
        """Whether to stop: nothing is left, or everything before ``end`` is sent and the writer goes on.

        Waits up to 4 s after a spool was taken over from a writer that was only silent.
        """
        live = delivery.live()
        if live and layout.is_mine(delivery.path) and self._clock() - self._taken_s < 2 * LINGER_S:
            return False
        return progress == "quiet" or (live and delivery.cursor.position >= end)


def _explain(outcome: SpoolOutcome, *, whole: bool) -> None:
    full = f", which is full and lacks {outcome.discarded:,} of them" if outcome.discarded else ""
    aside = f"rejected records are in {outcome.path}, in the file `{REJECTED}`{full}"
    if outcome.left_bytes and not whole:
        outcome.problem = "it does not name its run, or its last record is incomplete"
    elif outcome.rejected:
        outcome.problem = aside
    elif outcome.left_bytes:
        outcome.kept = "its process is still writing"
    elif (outcome.path / REJECTED).exists():
        outcome.kept = aside
    elif outcome.path.exists():
        outcome.kept = "kept for now: its process may still write, or was active recently"
