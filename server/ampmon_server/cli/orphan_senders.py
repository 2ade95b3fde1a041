"""Starts senders for records that dead processes left in the data directory, while the server runs."""

from __future__ import annotations

import threading
from pathlib import Path

from ampmon import sender


EVERY_S = 30.0
_AT_MOST_S = 600.0


class OrphanSenders:
    """A context that checks for unsent records at once and every 30 s, and starts a sender if there are any.

    When a sender makes no progress, the next one starts later each time, after up to ten minutes.
    """

    def __init__(self, directory: Path, every_s: float = EVERY_S) -> None:
        self._directory = directory
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ampmon-adopting", daemon=True)

    def __enter__(self) -> OrphanSenders:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()

    def _look(self) -> None:
        pause_s = self._every_s
        before: dict[str, int] = {}
        while True:
            left = sender.orphans(self._directory)
            if left:
                sender.ensure_running(self._directory)
            pause_s = min(2 * pause_s, _AT_MOST_S) if left and left == before else self._every_s
            before = left
            if self._stop.wait(pause_s):
                return
