"""The store benchmarks at a tiny size, without other tools: they run, and their results are right."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampmon_server.settings import Settings
from ampmon_server.store import Store
from benchmarks import peers
from benchmarks.store import (
    QUICK,
    against,
    alive,
    databases,
    figures,
    filling,
    listeners,
    load,
    rates,
    run_list,
    sizes,
    spikes,
)
from benchmarks.store.real import real
from benchmarks.store.samples import Real, shifted
from benchmarks.store.timing import Times, in_turns
from benchmarks.store.track import GROW, SET, SPIKE, STEADY, Track, track
from benchmarks.store.track import spikes as spiky_steps
from databases import defects
from serving import Server


NO_POSTGRESQL = "not measured: none here"
TINY = QUICK._replace(
    sizes=(300, 600),
    real_samples=2,
    figures_s=0.0,
    spiky_updates=2_000,
    ingest_s=0.1,
    runs=250,
    list_s=0.0,
    alive=3,
    listeners=3,
    against_records=400,
    stored_updates=1_000,
    stored_samples=40,
)


@pytest.fixture(scope="module")
def samples() -> Real:
    return real(TINY.real_samples)


@pytest.fixture
def sqlite_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that neither PostgreSQL nor another tool is installed."""

    @contextmanager
    def none() -> Any:
        yield NO_POSTGRESQL

    for module in (figures, run_list):
        monkeypatch.setattr(module, "in_turns", partial(in_turns, least=1))
    monkeypatch.setattr(databases, "postgresql", none)
    monkeypatch.setattr(peers, "version", lambda peer: None)


def test_a_track_moves_only_where_its_events_say() -> None:
    """The scale changes only after an update that grew, backed off or was set by hand; a spike lasts one update."""
    at = spiky_steps(20_000, 20)

    made = track(20_000, at)

    moved = np.flatnonzero(made.scale != made.scale_after)
    assert (made.scale[1:] == made.scale_after[:-1]).all()
    assert (made.event[moved] != STEADY).all()
    assert np.flatnonzero(made.scale == SPIKE).tolist() == at
    assert (made.event[at] == SET).all()
    assert (made.event == GROW).any()


def test_real_samples_are_of_148_parameters_and_vary(samples: Real) -> None:
    """Each parameter of a varied sample equals one of a real sample; shifting to another scale loses no element."""
    varied = samples.varied(np.random.default_rng(0))

    assert len(samples.parameters) == 148
    for parameter in range(148):
        assert any(
            np.array_equal(each.histogram[parameter], varied.histogram[parameter])
            for each in samples.samples
        )
    for binades in (-50, -1, 0, 3):
        assert (shifted(varied, binades).histogram.sum(1) == varied.histogram.sum(1)).all()


def test_a_filled_store_counts_what_was_put_in(data_directory: Path, samples: Real) -> None:
    """A bulk-loaded run has its track's updates, skips and samples, and verifies without a defect."""
    settings = Settings(data_directory=data_directory)
    made = track(5_000)

    (run,) = filling.fill(settings, [(made, samples)])

    store = Store.open(settings)
    summary, _ = store.run(run)
    skips = store.skips(run, limit=1_000)
    store.close()
    assert (summary.updates, summary.skipped) == (5_000, int(made.skipped.sum()))
    assert summary.sampled_updates == 5_000 // filling.SAMPLED_EVERY
    assert len(skips.rows) == summary.skipped
    assert defects(settings, run) == []


def test_a_copied_store_answers_alike(data_directory: Path, samples: Real) -> None:
    """A run copied to another database has the same summary and series, cells included."""
    first = Settings(data_directory=data_directory / "first")
    second = Settings(data_directory=data_directory / "second")
    runs = filling.fill(first, [(track(700), samples)])

    filling.copy(first, second, runs)

    stored = []
    for settings in (first, second):
        store = Store.open(settings)
        series = store.series(runs[0], columns=100)
        stored.append((store.run(runs[0]), series.updates.tobytes(), series.gradients.tobytes()))
        store.close()
    assert stored[0] == stored[1]


def test_figures_are_timed_at_every_size(tmp_path: Path, sqlite_only: None) -> None:
    """Every figure has a row for each view and axis, with times for each size; a missing engine's row says so."""
    rows = figures.measure(tmp_path, TINY)

    assert len(rows) == 4 * len(figures.FIGURES) + 1
    assert all(row["300 p95_ms"] > 0 and row["600 p95_ms"] > 0 for row in rows[:-1])
    assert rows[-1]["note"] == NO_POSTGRESQL
    assert len({tuple(row) for row in rows}) == 1


def test_the_spikes_are_shown(tmp_path: Path, sqlite_only: None) -> None:
    """ampmon's chart shows all spikes; a missing tool has no figure and says why."""
    rows = spikes.measure(tmp_path, TINY)

    named = {row["what"]: row for row in rows}
    assert (named["ampmon"]["spikes"], named["ampmon"]["shown"]) == (20, 20)
    assert named["MLflow"]["note"] == "not measured: mlflow is not installed"
    assert named["MLflow"]["shown"] is None


def test_a_spike_counts_only_at_its_step_and_height() -> None:
    """A point beside the spike, or lower, does not count."""
    assert spikes.shown([(7, 8.0), (9, 2.0)], {7: 8.0, 8: 8.0, 9: 8.0}) == 1


def test_pages_of_runs_are_timed(tmp_path: Path, sqlite_only: None) -> None:
    """The first, later, sorted, searched and project pages each have a time."""
    rows = run_list.measure(tmp_path, TINY)

    assert [row["page"] for row in rows[:-1]] == [
        "first",
        "further on",
        "at an offset",
        "sorted by updates",
        "searched",
        "of a project",
    ]
    assert all(row["runs"] == 250 and row["p95_ms"] > 0 for row in rows[:-1])


def test_all_that_clients_send_arrives_once(server: Server, samples: Real) -> None:
    """The server holds exactly the updates that several concurrent clients count as accepted."""
    works = [load.plain(3, 50, samples), load.sampled(2, 5, samples)]

    sent = load.send([server.url], server.token, works, limit_s=30.0)

    held = [server.get(f"/runs/{work.run_id}")["updates"] for work in works]
    assert held == [150, 10]
    assert sent.records == 160
    assert sent.rate > 0


def test_clients_stop_when_the_time_is_up(server: Server, samples: Real) -> None:
    """Clients send nothing after the time limit."""
    sent = load.send([server.url], server.token, [load.plain(1, 10, samples)], limit_s=-1.0)

    assert sent.records == 0


def test_ingest_is_measured(
    tmp_path: Path, sqlite_only: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each crowd has a rate; missing PostgreSQL and tools say why they have none."""
    monkeypatch.setattr(rates, "ON_SQLITE", (rates.Crowd(2, 50), rates.Crowd(1, 5, sampled=True)))

    rows = rates.measure(tmp_path, TINY)

    assert [row["per_s"] > 0 for row in rows[:2]] == [True, True]
    assert rows[2]["note"] == NO_POSTGRESQL
    assert {row["note"] for row in rows if row["tool"] == "trackio"} == {
        "not measured: trackio is not installed"
    }


def test_two_trees_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of another commit takes the same load, also with modules that are gone; an unknown one yields a note."""
    monkeypatch.setattr(against, "CROWDS", (rates.Crowd(2, 20),))
    (older,) = against.measure(tmp_path / "older", TINY)
    monkeypatch.setattr(against, "BEFORE", "HEAD")
    (row,) = against.measure(tmp_path / "known", TINY)
    monkeypatch.setattr(against, "BEFORE", "nowhere")
    (unknown,) = against.measure(tmp_path / "unknown", TINY)

    assert min(row["before_per_s"], row["now_per_s"], row["before_us"], row["now_us"]) > 0
    assert unknown["note"].startswith("not measured: fatal: ")
    assert older["note"] or older["before_per_s"] > 0  # a shallow clone has no older commit


def test_listeners_are_served_while_ingesting(tmp_path: Path) -> None:
    """With event streams open, ingest goes on, and each stream receives news of it."""
    began = time.monotonic()

    (row,) = listeners.measure(tmp_path, TINY)

    assert time.monotonic() - began < 60
    assert row["advances_told"] >= TINY.listeners
    assert row["beside_per_s"] > 0
    assert row["server_mb"] > 10


def test_runs_alive_are_ingested_whole(tmp_path: Path) -> None:
    """All updates of the runs alive arrive, and the server's memory is known before and after."""
    (row,) = alive.measure(tmp_path, TINY)

    assert row["updates"] == TINY.alive * alive.BATCHES * alive.SIZE
    assert 10 < row["at_rest_mb"] < row["peak_mb"]


def test_stored_bytes_are_of_what_was_ingested(tmp_path: Path, sqlite_only: None) -> None:
    """An update takes 10 to 200 bytes, less than as JSON; a sample takes 1 to 20 kB."""
    rows = {row["tables"]: row for row in sizes.measure(tmp_path, TINY)[:-1]}

    assert 10 < rows["update_pages, rollups"]["bytes"] < 200
    assert 1_000 < rows["gradient_blocks"]["bytes"] < 20_000


def test_percentiles_are_in_milliseconds() -> None:
    """Times in seconds become percentiles in milliseconds."""
    assert Times.of([0.001, 0.002, 0.003]) == pytest.approx((2.0, 2.9, 3))


def test_a_track_is_as_long_as_asked() -> None:
    """A track has as many updates as requested, even one."""
    made = track(1)

    assert isinstance(made, Track)
    assert len(made) == 1
