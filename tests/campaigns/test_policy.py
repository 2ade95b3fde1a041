"""The check of the simulator at its smallest: one task and two policies. `make simulate-check` runs all."""

from __future__ import annotations

from pathlib import Path

from campaigns.policy.reruns import SETTINGS, compare, record, rerun


UPDATES = 150
POLICIES = ("growth_interval=20", "fixed at 2^9")


def test_a_real_training_is_in_the_band_and_a_wrong_number_is_not(tmp_path: Path) -> None:
    """The skips of a real training under other policies are within the known ranges, and 50 more are not."""
    history = record("noise", UPDATES, tmp_path, {"growth_interval": 25})
    real = {name: rerun("noise", SETTINGS[name], UPDATES) for name in POLICIES}

    rows = compare("noise", "every 25", history, real)
    assert [row for row in rows if row.known and not row.inside] == []
    assert any(row.known for row in rows)

    wrong = compare("noise", "every 25", history, {name: n + 50 for name, n in real.items()})
    assert [row for row in wrong if row.known and row.inside] == []
