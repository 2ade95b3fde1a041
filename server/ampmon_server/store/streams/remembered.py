"""What ingest remembers of runs between batches, so that the next batch reads none of it again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from ampmon_server.store.pages.pages import Tails
from ampmon_server.store.streams.streams import Header, IngestStream


if TYPE_CHECKING:
    from ampmon_server.store.streams.attempts import Attempt
    from ampmon_server.store.streams.ledger import HeldRange

WEIGHT_MAX = 16_384
"""Of all runs that are remembered, in about 4 kB: a stream, or the header of an attempt, takes as much."""


@dataclass(slots=True)
class Remembered:
    """A run as its row at ``version`` had it: whoever changes what stands here moves the version on."""

    version: int = -1
    attempts: dict[UUID, Attempt] = field(default_factory=dict)
    streams: dict[tuple[int, str], IngestStream] = field(default_factory=dict)
    """By rank and scaler."""
    complete: set[str] = field(default_factory=set)
    """The scalers whose streams are here of all ranks."""
    headers: dict[tuple[int, int], Header] = field(default_factory=dict)
    """By stream and attempt."""
    newest: dict[tuple[int, int], HeldRange] = field(default_factory=dict)
    """The last range of the ledger, by stream and attempt."""
    tails: Tails = field(default_factory=dict)
    """The newest pages of updates, by stream, and of logged values, by stream and name."""

    def at(self, version: int) -> Remembered:
        """The same, with nothing in it if it is of another version."""
        if version != self.version:
            for each in (
                self.attempts,
                self.streams,
                self.complete,
                self.headers,
                self.newest,
                self.tails,
            ):
                each.clear()
        return self

    @property
    def weight(self) -> int:
        """How much is remembered; 1 at least, for runs may have nothing but an attempt."""
        pages = sum(1 + each.rows.nbytes // 4096 for each in self.tails.values())
        return 1 + len(self.streams) + len(self.headers) + len(self.newest) + pages


class Memory:
    """The runs that sent something last. Callable from any thread.

    A run is taken out for the time of a transaction and put back once that is committed: where it fails, whatever it
    has changed here is forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[UUID, Remembered] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, run_id: UUID) -> Remembered:
        """What is remembered of a run, nothing where it is not, and not any more from now on."""
        with self._lock:
            return self._take(run_id) or Remembered()

    def put(self, run_id: UUID, remembered: Remembered) -> None:
        """Remember a run at its version, which is committed."""
        if remembered.weight > WEIGHT_MAX:
            remembered.tails.clear()  # they weigh the most, and save the least
        with self._lock:
            other = self._take(run_id)
            if other is not None and other.version > remembered.version:
                remembered = other
            self._runs[run_id] = remembered
            self._weight += remembered.weight
            while self._weight > WEIGHT_MAX:
                self._take(next(iter(self._runs)))

    def _take(self, run_id: UUID) -> Remembered | None:
        found = self._runs.pop(run_id, None)
        self._weight -= found.weight if found is not None else 0
        return found
