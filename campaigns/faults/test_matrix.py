"""The fault matrix at a few positions of each line. `python -m campaigns.faults --all` runs every position."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from campaigns.faults.matrix import PLANTED, lines, short


ROOT = Path(__file__).parents[2]
ALL_S = 600.0

Cells = dict[str, list[dict[str, Any]]]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the parts are forked from a warm process"),
    pytest.mark.timeout(ALL_S),
]


@pytest.fixture(scope="module")
def cells() -> Cells:
    """The results of the cells, by the name of their line."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-m", "campaigns.faults", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        timeout=ALL_S,
    )
    found: Cells = defaultdict(list)
    for line in ran.stdout.splitlines():
        cell = json.loads(line)
        found[cell.get("line", "no fault")].append(cell)
    assert found["all cells together"], ran.stderr
    return found


def wrong(cells: list[dict[str, Any]]) -> list[str]:
    return [f"call {cell.get('number')}: {words}" for cell in cells for words in cell["wrong"]]


def test_without_a_fault_nothing_is_wrong(cells: Cells) -> None:
    """Without a fault no part is wrong, and the databases shared by many cells are sound at the end."""
    assert wrong(cells["no fault"] + cells["all cells together"]) == []


@pytest.mark.parametrize("line", [line.name for line in short()])
def test_nothing_is_lost_or_doubled(cells: Cells, line: str) -> None:
    """When a call fails, training stays exact, acknowledged records are stored once, and missing ones are counted."""
    assert cells[line]
    assert wrong(cells[line]) == []


def test_each_operation_was_made_to_fail(cells: Cells) -> None:
    """A fault reaches each operation of each part, so none goes untested because nothing calls it."""
    reached = {
        line.rpartition("/")[0]
        for line, found in cells.items()
        if any(c.get("reached") for c in found)
    }

    assert reached >= {f"{line.part}/{line.operation}" for line in lines()}


@pytest.mark.parametrize("line", [line.name for line in PLANTED])
def test_a_planted_bug_is_found(cells: Cells, line: str) -> None:
    """The matrix finds each planted bug: acknowledging before the commit or without an answer, and storing twice."""
    assert wrong(cells[line])
