"""The fault matrix at its smallest: a few cells and one planted bug. `make faults` runs all of it."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import scripts
from ampmon import identity, wire
from batches import Trainer
from campaigns.faults import account
from campaigns.faults.account import Account


ROOT = Path(__file__).parents[2]
PROGRAM = f"""
import runpy, sys
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT)]}
runpy.run_module("campaigns.faults", run_name="__main__")
"""
SOUND = ("trainer/write/ENOSPC", "sender/receive/reset")
PLANTED = "server/request/double (stores whatever comes)"


@pytest.mark.skipif(sys.platform != "linux", reason="the parts are forked from a warm process")
def test_faults_lose_nothing_and_a_planted_bug_is_found() -> None:
    """A full disk and a lost connection cause no error, and a server that stores records twice is found."""
    options = ["--json", "--jobs", "1", "--call", "2", "--only", *SOUND, PLANTED]
    ran = scripts.run("-c", PROGRAM, *options, check=False)
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in ran.stdout.splitlines():
        cell = json.loads(line)
        cells[cell.get("line", "no fault")].append(cell)

    reached = {line for line, found in cells.items() if any(c.get("reached") for c in found)}
    wrong = {line: c["wrong"] for line, found in cells.items() for c in found if c["wrong"]}
    assert reached == {*SOUND, PLANTED}, ran.stderr
    assert wrong.keys() - {"all cells together"} == {PLANTED}, wrong
    assert wrong.get("all cells together") is None, wrong
    assert ran.returncode == 1


def test_of_records_that_are_too_large_an_update_is_expected_without_its_sample() -> None:
    """The sender delivers an update that is too large without its sample, so only an update that has none is a hole."""
    trainer = Trainer(run_id=identity.uuid7(), rank=0, attempt_id=identity.uuid7())
    expected = Account()
    for record in (records := trainer.updates(3, skipped=(1,), sampled=(1, 2))):
        account._add(expected, record)
    for record in records[:2]:
        expected.leave_out(wire.encode(record))

    (numbers,) = expected.seqs.values()
    assert numbers == [1, 2]
    assert (set(expected.updates), expected.skips, expected.samples) == ({1, 2}, {1}, {2})
