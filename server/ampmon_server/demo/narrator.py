"""Reads the run back from the server and prints what is new, so the terminal and the page show the same numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ampmon_server.demo.service import DemoServer
from ampmon_server.demo.story import Row, Story, rows


LOOK_S = 0.5


class Narrator:
    """Tells the story of one run. Queries at most twice a second, and retries later if the server does not answer."""

    def __init__(self, service: DemoServer, run_id: str, say: Callable[[str], None]) -> None:
        self._service = service
        self._path = f"/runs/{run_id}"
        self._say = say
        self._story = Story()
        self._next_step = 0
        self._next_look = 0.0

    def look(self, *, now: bool = False) -> None:
        """Print what is new, unless it is too early to ask. Blocks for one request, and one more for each new skip."""
        if not now and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        columns = self._service.ask(f"{self._path}/updates?start={self._next_step}&limit=10000")
        for row in rows(columns) if columns else ():
            self._next_step = row.step + 1
            for words in self._story.lines_for(row, self._culprit(row)):
                self._say(words)

    def _culprit(self, row: Row) -> str | None:
        if not row.skipped:
            return None
        ledger: dict[str, Any] = self._service.ask(f"{self._path}/skips?limit=20") or {"skips": []}
        for skip in ledger["skips"]:
            if skip["step"] == row.step and skip["culprits"]:
                return str(skip["culprits"][0]["parameter"])
        return None
