"""Counts the attacks of each kind, and names those that got through."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar


KEPT = 20
"""The number of attacks of one kind that are named; the rest are only counted."""
_Attack = TypeVar("_Attack")


class Tally:
    """Attacks by kind, in the order first tried. Thread-safe."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.through: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def note(self, kind: str, attack: object, *, held: bool) -> None:
        """Count an attack, and keep its description if it got through."""
        with self._lock:
            self.tried[kind] += 1
            if not held:
                self.through.setdefault(kind, []).append(str(attack))

    def each(
        self,
        kind: str,
        attacks: Iterable[_Attack],
        holds: Callable[[_Attack], object],
        at_once: int = 16,
    ) -> None:
        """Try attacks, ``at_once`` at a time. ``holds`` returns None if the server held, else what it did."""

        def try_one(attack: _Attack) -> None:
            did = holds(attack)
            self.note(kind, f"{attack!r}: {did!r}", held=did is None)

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(try_one, attacks))

    @property
    def held(self) -> bool:
        return not self.through

    def lines(self) -> list[str]:
        """A Markdown table, then the attacks that got through."""
        rows = ["| attack | tried | got through |", "| --- | ---: | ---: |"]
        for kind, tried in self.tried.items():
            rows.append(f"| {kind} | {tried} | {len(self.through.get(kind, ()))} |")
        rows.append(f"| all | {self.tried.total()} | {sum(map(len, self.through.values()))} |")
        return [*rows, *self._named()]

    def _named(self) -> list[str]:
        return [
            f"{kind}: {attack[:400]}"
            for kind, attacks in self.through.items()
            for attack in attacks[:KEPT]
        ]


def every(attacks: Sequence[_Attack], nth: int) -> Sequence[_Attack]:
    """Every ``nth`` attack, for a quick smoke test."""
    return attacks[::nth]
