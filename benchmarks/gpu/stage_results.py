"""What a stage says: bars, rows and facts, in a file that is whole at any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import replace


PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


class StageResults:
    """What a stage has said so far. Its file is written at each word, so a stage that is killed leaves all of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._facts: dict[str, Any] = {}
        self._bars: dict[str, dict[str, Any]] = {}
        self._tables: dict[str, list[dict[str, Any]]] = {}
        self._failures: list[dict[str, str]] = []

    def fact(self, name: str, value: object) -> None:
        """Something that the figures depend on."""
        self._facts[name] = value
        self._write()

    def bar(
        self, name: str, holds: bool | None, value: object, limit: object, note: str = ""
    ) -> None:
        """Whether a bar holds; None where that is not known. A later word on it takes an earlier one's place."""
        state = NOT_RUN if holds is None else PASSED if holds else FAILED
        self._bars[name] = {
            "bar": name,
            "limit": limit,
            "value": value,
            "state": state,
            "note": note,
        }
        self._write()

    def rows(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Rows of equal columns: a table, in the place of the one before."""
        self._tables[table] = list(rows)
        self._write()

    def failures(self, failures: Mapping[str, str]) -> None:
        """What failed, by name, and why."""
        self._failures = [{"what": what, "why": why} for what, why in failures.items()]
        self._write()

    def _write(self) -> None:
        parts = {
            "facts": self._facts,
            "bars": list(self._bars.values()),
            "tables": self._tables,
            "failures": self._failures,
        }
        replace(self._file, json.dumps(parts).encode())


def read_results(file: Path) -> dict[str, Any]:
    """What a stage has said, nothing where it said none."""
    nothing: dict[str, Any] = {"facts": {}, "bars": [], "tables": {}, "failures": []}
    return json.loads(file.read_bytes()) if file.exists() else nothing
