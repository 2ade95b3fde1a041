"""What was read a moment ago, for all who ask for the same at about the same time: the charts of a page. No SQL."""

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
"""What no key shows, as a repair of the database, is not seen for so long."""


@dataclass(slots=True)
class _Place(Generic[T]):
    """Whoever comes first reads, behind its lock; those who come meanwhile wait for that."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    found: list[T] = field(default_factory=list)
    until: float = 0.0


class Recent(Generic[T]):
    """Keeps the newest few readings for a moment. Callable from any thread."""

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
        """What ``read`` gives, or gave a moment ago for an equal key. Raises what it raises, and keeps nothing then."""
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
