"""Caches reads for a moment, so that the charts of a page that need the same data share one read. No SQL."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar


T = TypeVar("T")

MOST = 4
LIFE_S = 2.0
"""In seconds. A change that keys do not reflect, for example a repaired database, stays unseen for this long."""


@dataclass(slots=True)
class _Place(Generic[T]):
    """A cached read. The first caller reads while it holds the lock; callers with the same key wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    found: list[T] = field(default_factory=list)
    until: float = 0.0


class Recent(Generic[T]):
    """Keeps the most recently used reads for a moment. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        most: int = MOST,
        life_s: float = LIFE_S,
    ) -> None:
        self._clock, self._most, self._life_s = clock, most, life_s
        self._lock = threading.Lock()
        self._places: OrderedDict[Hashable, _Place[T]] = OrderedDict()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the cached result for an equal key, else call ``read`` and cache its result.

        Blocks while another thread reads for the same key. Errors of ``read`` propagate and are not cached.
        """
        with self._lock:
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            if len(self._places) > self._most:
                self._places.popitem(last=False)
        with place.lock:
            if not place.found or self._clock() >= place.until:
                place.found = [read()]
                place.until = self._clock() + self._life_s
            return place.found[0]
