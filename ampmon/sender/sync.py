"""Sends spools on request, each taken over from whoever is gone, and reports progress. Knows no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ampmon.errors import AmpmonError, Unreachable
from ampmon.sender import election
from ampmon.sender.adoption import LeftAlone, take
from ampmon.sender.backoff import LOCAL_FIRST_S, Backoff
from ampmon.sender.delivery import SpoolDelivery
from ampmon.spool import (
    Cursor,
    Destination,
    Position,
    attempt_id_of,
    end_of,
    is_mine,
    segments,
    spools_in,
)
from ampmon.transport import Transport


LINGER_S = 2.0
"""A writer that lives looks each second where its spool is: after so long it has seen that it was taken over."""
TRIES = 6
"""So often in a row a server is asked, within some three seconds, before its spools are left for another time."""
_POLL_S = 0.1


@dataclass(slots=True)
class SpoolOutcome:
    """What became of one spool: ``records`` were sent, ``rejected`` refused and set aside.

    ``left_bytes`` are not sent, as they lie on disk, and ``problem`` says why. ``kept`` says why a spool stays from
    which all was sent that was there. ``url`` is where it is to be sent, as it says itself.
    """

    path: Path
    left_bytes: int
    url: str = ""
    records: int = 0
    rejected: int = 0
    corrupt: int = 0
    problem: str | None = None
    kept: str | None = None


def spools_at(directory: Path) -> list[Path] | None:
    """The spools of a data directory, or in a folder of spools, or the one that ``directory`` itself is.

    None where it is nothing of these. Raises OSError.
    """
    if attempt_id_of(directory) is not None and directory.is_dir():
        return [directory]
    if (directory / "spool").is_dir():
        return spools_in(directory / "spool")
    return spools_in(directory) or None


class Sync:
    """Sends the spools ``paths`` once. ``on_batch`` is called after every batch."""

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
        """What is wrong with a server, or with a token for it."""
        self.bytes = self.left_bytes
        """What there was to send at the beginning, as it lies on disk."""

    @property
    def left_bytes(self) -> int:
        """What there is still to send, given up or not."""
        return sum(outcome.left_bytes for outcome in self._outcomes)

    @property
    def records(self) -> int:
        """What was sent so far."""
        return sum(outcome.records for outcome in self._outcomes)

    def run(self) -> Iterator[SpoolOutcome]:
        """Send, and yield each spool once it is dealt with, but for those that there was nothing to do about.

        Blocks for the time of the requests. What was acknowledged stays so, wherever this is interrupted.
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
        """Take a spool over; whose it is, where it can be sent now."""
        path = outcome.path
        destination = Destination.read(path)
        try:
            if not path.exists() or not segments(path):
                outcome.left_bytes = 0  # sent by somebody else, or long ago
                return None
            if destination is None:
                outcome.problem = "its server is unknown: the file `destination` is missing"
                return None
            at_work = election.is_held(path.parent.parent)
            outcome.path = take(path, destination, sender_at_work=at_work)
        except LeftAlone as left:
            outcome.problem = str(left) if outcome.left_bytes else None
            return None
        except OSError as error:
            outcome.problem = f"{error.strerror or error}: copy it to where it can be written"
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
        """Whether all was sent that was there at the beginning: a process that lives may write for ever."""
        end = end_of(delivery.path)
        backoff, tries = Backoff(self._clock, first_s=LOCAL_FIRST_S), 0
        before = delivery.rejected, delivery.corrupt
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
                outcome.rejected = delivery.rejected - before[0]
                outcome.corrupt = delivery.corrupt - before[1]
                outcome.left_bytes = delivery.waiting_bytes()
                self._on_batch(self)
            time.sleep(_POLL_S if progress == "quiet" else backoff.remaining_s())
        return delivery.position >= end

    def _is_enough(self, delivery: SpoolDelivery, progress: str, end: Position) -> bool:
        """Whether nothing more is to be waited for, or all before ``end`` is sent of what somebody goes on writing.

        A moment more is worth it of one that was silent for long, and was just taken over.
        """
        live = delivery.live()
        if live and is_mine(delivery.path) and self._clock() - self._taken_s < 2 * LINGER_S:
            return False
        return progress == "quiet" or (live and delivery.position >= end)


def _explain(outcome: SpoolOutcome, *, whole: bool) -> None:
    if outcome.left_bytes and not whole:
        outcome.problem = "it does not say which run it is of, or its last record is not whole"
    elif outcome.rejected:
        outcome.problem = f"what was refused is in {outcome.path}, in the file `rejected`"
    elif outcome.left_bytes:
        outcome.kept = "its process goes on writing"
    elif outcome.path.exists():
        outcome.kept = "it stays for now: its process may still write, or was heard of lately"
