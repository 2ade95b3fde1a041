"""Keeps the finished cells of a long run, to resume it, and writes the committed result."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from campaigns import faults
from campaigns.faults import matrix


TITLE = "Faults"


def keep(state: Path, cell: dict[str, Any]) -> None:
    state.parent.mkdir(parents=True, exist_ok=True)
    with state.open("a") as file:
        file.write(json.dumps(cell) + "\n")


def done(state: Path) -> dict[str, int]:
    """The number of each line's last finished cell; -1 if the line is finished."""
    found: dict[str, int] = {}
    for cell in _cells(state):
        found[cell["line"]] = cell["number"] if cell["reached"] else -1
    return found


def write(state: Path) -> None:
    """Write the result, by part and operation, beside those of the benchmarks."""
    ways = {line.name: line for line in matrix.lines()}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    kinds = defaultdict(set)
    for cell in _cells(state):
        line = ways.get(cell["line"])
        if line is None:
            continue
        key = (line.part, line.operation)
        row = rows.setdefault(
            key,
            {
                "part": key[0],
                "operation": key[1],
                "calls": 0,
                "ways to fail": 0,
                "cells": 0,
                "wrong": 0,
            },
        )
        kinds[key].add((line.kind, line.times))
        row["ways to fail"] = len(kinds[key])
        row["cells"] += cell["reached"]
        row["calls"] = max(row["calls"], cell["number"] if cell["reached"] else 0)
        row["wrong"] += bool(cell["wrong"])
    figures = {
        "machine": machine.describe(),
        "command": "PYTHONPATH=tests:. python -m campaigns.faults --all",
        "faults": [rows[key] for key in sorted(rows)],
    }
    benchmarks = {"faults": report.Benchmark("Each call of each part, failing in each way", faults)}
    text = report.as_markdown(TITLE, benchmarks, figures)
    report.write(report.RESULTS / f"{machine.slug()}-faults", text, figures)


def _cells(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
