"""What a trainer reports apart from ampmon: a file of lines, each written after a recording call returned."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class TrainerLogWriter:
    """Appends to the file at ``path``. Its lines survive a `kill -9` of the process."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **values: object) -> None:
        os.write(self._fd, json.dumps({"what": what, **values}).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Update:
    """What torch did in an update, and whether ampmon sampled it."""

    scale: float | None
    scale_after: float | None
    skipped: tuple[str, ...]
    sampled: bool


@dataclass(slots=True)
class TrainerLog:
    """A trainer's report: its updates and losses, each in the order of their ordinals, and how far it came."""

    updates: list[Update] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    exposed: int = 0
    """The number of last records that passed through memory, so that a kill may lose them."""
    finishing: bool = False
    finished: bool = False

    @classmethod
    def read(cls, path: Path) -> TrainerLog:
        """Read the report at ``path``; empty if there is no file."""
        log = cls()
        lines = path.read_text().split("\n") if path.exists() else [""]
        for line in lines[:-1]:  # after the last newline there is nothing, or a torn line
            log._add(json.loads(line))
        return log

    def _add(self, said: dict[str, Any]) -> None:
        what = said.pop("what")
        if what == "finishing":
            self.finishing = True
        elif what == "finished":
            self.finished = True
        else:
            self.exposed = self.exposed + 1 if said.pop("in_memory") else 0
            if what == "update":
                self.updates.append(Update(**{**said, "skipped": tuple(sorted(said["skipped"]))}))
            else:
                self.losses.append(said["loss"])
