"""The diagnosis benchmarks at a tiny size: they run, and their results are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.diagnosis import QUICK, arriving, asked, many
from benchmarks.store.rates import Crowd


TINY = QUICK._replace(sizes=(300, 600), real_samples=2, asking_s=0.0, updates=2_000, ingest_s=0.5)


def test_diagnoses_are_timed_at_every_size(tmp_path: Path) -> None:
    """Each run size has a row with its times and findings."""
    rows = asked.measure(tmp_path, TINY)
    assert [row["updates"] for row in rows] == [300, 600]
    assert all(0 < row["p50_ms"] <= row["p95_ms"] for row in rows)
    assert all("silent" in row["findings"] for row in rows)


def test_ingest_is_measured_with_judging_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest has a rate with and without diagnosis; diagnosis has a cost wherever its processor time is known."""
    monkeypatch.setattr(arriving, "CROWDS", (Crowd(1, 100),))
    (row,) = arriving.measure(tmp_path, TINY)
    assert row["judging_per_s"] > 0
    assert row["not_per_s"] > 0
    assert (row["cost"] is None) == (row["judging_cpu_us"] is None)


def test_active_runs_are_judged_in_time(tmp_path: Path) -> None:
    """The server diagnoses a few runs that send at once, and none waits too long."""
    (row,) = many.measure(tmp_path, TINY._replace(active=3, active_s=10.0))
    assert row["looks"] > 0
    assert row["holds"] == "yes"
