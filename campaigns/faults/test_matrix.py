"""Some of the fault matrix: each way for each call of each part to fail, at a few positions; `--all` runs all."""

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
    """What became of each cell, by the name of its line."""
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
    """All parts do what they must when nothing fails, and the databases that many cells shared are sound in the end."""
    assert wrong(cells["no fault"] + cells["all cells together"]) == []


@pytest.mark.parametrize("line", [line.name for line in short()])
def test_nothing_is_lost_or_doubled(cells: Cells, line: str) -> None:
    """A call fails: training goes on to the bit, what is acknowledged is stored, once, and what is missing is told."""
    assert cells[line]
    assert wrong(cells[line]) == []


def test_each_operation_was_made_to_fail(cells: Cells) -> None:
    """Of each part, each operation was reached by a fault: none is left out because nobody calls it."""
    reached = {
        line.rpartition("/")[0]
        for line, found in cells.items()
        if any(c.get("reached") for c in found)
    }

    assert reached >= {f"{line.part}/{line.operation}" for line in lines()}


@pytest.mark.parametrize("line", [line.name for line in PLANTED])
def test_a_planted_bug_is_found(cells: Cells, line: str) -> None:
    """To acknowledge before the commit, to take silence for an answer, to store twice: the matrix shows each."""
    assert wrong(cells[line])
