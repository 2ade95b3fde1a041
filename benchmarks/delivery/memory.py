"""Current and peak memory of processes, as Linux counts it. NaN if the system does not report it."""

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
    """Memory in MB. ``rss`` counts all of the memory shared with other processes, ``pss`` a proportional part."""

    rss: float
    pss: float


def held_now(process: int) -> Held:
    """A process's current memory, or NaN if the system does not report it."""
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
    """The peak of `Held`."""

    rss: float = float("nan")
    pss: float = float("nan")

    def see(self, process: int) -> None:
        """Update the peak from a process. If the process is gone, the peak stays."""
        files = Path(f"/proc/{process}")
        try:
            # The system's own high-water mark misses nothing between two readings.
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
    """Yield the peaks of processes, updated twice a second and on exit."""
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
