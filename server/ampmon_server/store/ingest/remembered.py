"""Caches the state of runs between batches, so that ingest does not read it again for the next batch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from ampmon_server.store.pages.pages import Tails
from ampmon_server.store.streams.attempts import Attempt
from ampmon_server.store.streams.scalers import Header, StreamSource


WEIGHT_MAX = 16_384
"""The limit over all cached runs, in units of about 4 kB: a stream or the header of an attempt takes one unit."""


Steps = tuple[int, int]
"""The first and the last step of some updates."""


class HeldRange(NamedTuple):
    """A range of the ledger: its first and last seq, and the steps of its updates."""

    first: int
    last: int
    steps: Steps | None


@dataclass(slots=True)
class Remembered:
    """Cached state of a run at ``version``. Each change of this data must increment the version."""

    version: int = -1
    attempts: dict[UUID, Attempt] = field(default_factory=dict)
    streams: dict[tuple[int, str], StreamSource] = field(default_factory=dict)
    """By rank and scaler."""
    complete: set[str] = field(default_factory=set)
    """The scalers whose streams are cached for all ranks."""
    headers: dict[tuple[int, int], Header] = field(default_factory=dict)
    """By stream and attempt."""
    newest: dict[tuple[int, int], HeldRange] = field(default_factory=dict)
    """The last range of the ledger, by stream and attempt."""
    tails: Tails = field(default_factory=dict)
    """The newest pages of updates, by stream, and of logged values, by stream and name."""

    def at(self, version: int) -> Remembered:
        """Return itself, emptied if it is of another version."""
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
        """The size in units of `WEIGHT_MAX`; at least 1, because a run may have nothing but an attempt."""
        pages = sum(1 + each.rows.nbytes // 4096 for each in self.tails.values())
        return 1 + len(self.streams) + len(self.headers) + len(self.newest) + pages


class Memory:
    """Cache of the runs that sent something last. Thread-safe.

    A run is taken out for a transaction and put back after the commit. If the transaction fails, the cached state is
    dropped with its changes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[UUID, Remembered] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, run_id: UUID) -> Remembered:
        """Remove and return the cached state of a run; an empty state if it is not cached."""
        with self._lock:
            return self._take(run_id) or Remembered()

    def put(self, run_id: UUID, remembered: Remembered) -> None:
        """Cache the state of a run, whose version must be committed."""
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
