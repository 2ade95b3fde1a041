"""A stage's report: bars, rows and facts, in a file that is complete at any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import replace


PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"


class StageResults:
    """A stage's report so far. Each change writes its file, so a killed stage loses nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._facts: dict[str, Any] = {}
        self._bars: dict[str, dict[str, Any]] = {}
        self._tables: dict[str, list[dict[str, Any]]] = {}
        self._failures: list[dict[str, str]] = []

    def fact(self, name: str, value: object) -> None:
        """Record something that the figures depend on."""
        self._facts[name] = value
        self._write()

    def bar(
        self, name: str, holds: bool | None, value: object, limit: object, note: str = ""
    ) -> None:
        """Record whether a bar holds, or None if unknown. Replaces the bar's earlier record."""
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
        """Record a table of rows with equal columns. Replaces the table's earlier rows."""
        self._tables[table] = list(rows)
        self._write()

    def failures(self, failures: Mapping[str, str]) -> None:
        """Record why things failed, by name. Replaces earlier failures."""
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
    """Read a stage's report, which is empty if there is no file."""
    nothing: dict[str, Any] = {"facts": {}, "bars": [], "tables": {}, "failures": []}
    return json.loads(file.read_bytes()) if file.exists() else nothing
