"""Compares the simulator with real trainings: the short form of `make simulate-check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.policy.reruns import SETTINGS, compare, record, rerun


UPDATES = 300


@pytest.mark.parametrize("task", ["noise", "outliers"])
def test_real_trainings_are_in_the_band(task: str, tmp_path: Path) -> None:
    """The skips of real trainings under three other policies lie in every simulated band narrow enough to count."""
    history = record(task, UPDATES, tmp_path, {"growth_interval": 25})
    names = ["growth_interval=20", "by 4 and 1/4, growth_interval=50", "fixed at 2^9"]
    real = {name: rerun(task, SETTINGS[name], UPDATES) for name in names}
    rows = compare(task, "every 25", history, real)
    print(*rows, sep="\n")
    assert [row for row in rows if row.known and not row.inside] == []
    assert any(row.known for row in rows)
