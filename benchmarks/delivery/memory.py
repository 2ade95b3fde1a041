"""How much memory processes hold, now and at most, as Linux counts it. NaN where the system does not say."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


EVERY_S = 0.5


class Held(NamedTuple):
    """In MB: ``rss`` counts all of what is shared with other processes, ``pss`` a fair part of it."""

    rss: float
    pss: float


def held_now(process: int) -> Held:
    """What a process holds now; NaN where the system does not say."""
    files = Path(f"/proc/{process}")
    try:
        return Held(
            _megabytes((files / "status").read_text(), "VmRSS"),
            _megabytes((files / "smaps_rollup").read_text(), "Pss"),
        )
    except (OSError, ValueError):
        return Held(float("nan"), float("nan"))


@dataclass
class Peak:
    """The most that was `Held`."""

    rss: float = float("nan")
    pss: float = float("nan")

    def see(self, process: int) -> None:
        """Look once more at a process. One that is gone stays as it was."""
        files = Path(f"/proc/{process}")
        try:
            # The system's own high-water mark misses nothing between two looks.
            self.rss = _megabytes((files / "status").read_text(), "VmHWM")
            pss = _megabytes((files / "smaps_rollup").read_text(), "Pss")
        except (OSError, ValueError):
            return
        self.pss = pss if self.pss != self.pss else max(self.pss, pss)


def _megabytes(text: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{name} is not there")
    return int(found[1]) * 1024 / 1e6


@contextmanager
def watched(processes: Mapping[str, int]) -> Iterator[dict[str, Peak]]:
    """The peaks of processes, looked at twice a second until the way out."""
    peaks = {name: Peak() for name in processes}
    ended = threading.Event()

    def look() -> None:
        for name, process in processes.items():
            peaks[name].see(process)

    def keep_looking() -> None:
        while not ended.wait(EVERY_S):
            look()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()
        look()
