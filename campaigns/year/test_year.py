"""The year at a tiny size: every generated update is stored or was thinned, and differences are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ampmon import wire
from ampmon_server.http.decoding import decode_batch
from batches import PARAMETERS, statistics
from benchmarks.store.samples import Real
from campaigns.year import campaign, senders
from campaigns.year.campaign import Campaign
from campaigns.year.clock import Clock
from campaigns.year.population import RUNS, UPDATES, population
from campaigns.year.report import write
from campaigns.year.training import BATCH, LOGGED_EVERY, Samples, Training, pieces


SCALE, SEED = 0.0002, 3


@pytest.fixture
def real() -> Real:
    return Real(PARAMETERS, [statistics(seed=seed) for seed in range(3)])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A year of two months, the second one measured, sent by one process."""
    monkeypatch.setattr(campaign, "MONTH_ENDS", (150, 365))
    monkeypatch.setattr(campaign, "LOOKED_AT", (2,))
    monkeypatch.setattr(senders, "PROCESSES", 1)
    monkeypatch.setenv("BENCHMARK_CLOCK", "")  # restored afterwards


def test_a_population_is_a_teams() -> None:
    """A population has the requested size, half of it short runs, few long ones, and all fates, owners and ranks."""
    runs = population(0.05, 1)

    lengths = sorted(run.updates for run in runs)
    assert len(runs) == RUNS * 0.05
    assert sum(run.updates * run.ranks for run in runs) == pytest.approx(UPDATES * 0.05, rel=0.01)
    assert lengths[len(runs) // 2] < 1500
    assert lengths[-1] > 100_000
    assert {run.fate for run in runs} == {"finished", "crashed", "killed", "resumed"}
    assert {run.health for run in runs} == {"well", "restless", "diverged"}
    assert {run.ranks for run in runs} == {1, 2, 4, 8}
    assert len({run.person for run in runs}) == 30
    assert runs == population(0.05, 1)


def test_batches_number_their_records_without_a_gap(real: Real) -> None:
    """Over an attempt's batches, updates and logged values have each seq of their stream once, in order."""
    run = max(population(0.01, 1), key=lambda run: run.updates)
    training = Training.of(run, "ada", Samples(real))

    records = [
        record
        for piece in list(pieces(run))[:3]
        for record in decode_batch(training.batch(piece)).records
        if record.stream
    ]

    assert run.updates > 3 * BATCH
    assert [record.seq for record in records] == list(range(3 * BATCH * 11 // 10))
    assert sum(type(record) is wire.Scalars for record in records) == 3 * BATCH // LOGGED_EVERY


def test_a_year_adds_up_wherever_it_was_interrupted(
    tmp_path: Path, real: Real, short: None
) -> None:
    """After an interruption and a resume, each update is held or was thinned, and totals are exact."""
    first = Campaign(tmp_path, SCALE, SEED, look_s=0.0)

    def interrupt() -> None:
        if first.state.updates > first.total // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run(real, interrupt)
    again = Campaign(tmp_path, SCALE, SEED, look_s=0.0)
    assert 0 < again.state.updates < again.total
    found = again.run(real, lambda: None)

    assert found.problems == []
    assert found.held + found.thinned == found.sent == again.total
    assert min(found.held, found.thinned) > 0
    assert again.state.months[-1].after is not None
    assert again.state.months[-1].after["runs"] == len(again.runs)
    text = write(again, tmp_path / "result")
    assert f"Of {found.sent:,} updates that were sent" in text
    assert (tmp_path / "result.md").read_text() == text


def test_a_pruning_that_was_interrupted_is_reported_whole(tmp_path: Path) -> None:
    """An interrupted pruning keeps the measurement before it, and adds up the time of its parts."""
    looks: list[dict[str, Any]] = []

    def look() -> dict[str, Any]:
        looks.append({"runs": len(looks)})
        return looks[-1]

    seconds = [0.0]
    for _ in range(2):
        year = Campaign(tmp_path, SCALE, SEED, look_s=0.0)
        month, _ = next(year._ahead())
        with pytest.raises(RuntimeError, match="db prune"):  # there is no database yet
            year._close(month, look)
        (kept,) = Campaign(tmp_path, SCALE, SEED, look_s=0.0).state.months
        seconds.append(kept.prune_seconds)

    assert kept.before == {"runs": 0}
    assert len(looks) == 1
    assert 0.0 < seconds[1] < seconds[2]
    assert not kept.closed


def test_a_clock_is_the_same_in_every_process_and_goes_on(tmp_path: Path) -> None:
    """A second clock on the same file shows the time that was set, and never goes back."""
    Clock(tmp_path / "clock").set(5_000_000)
    other = Clock(tmp_path / "clock")

    seen = other.time_ns()

    assert 5_000_000_000 <= seen < 65_000_000_000
    assert other.time_ns() >= seen
