"""The delivery benchmarks at a tiny size, without other tools: they run, and their results are right."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers, report
from benchmarks.delivery import QUICK, backlog, host_time, latency, tail, tools
from benchmarks.delivery.memory import Peak
from benchmarks.delivery.training import train


TINY = QUICK._replace(
    rounds=1,
    hot_pairs=3,
    swept_pairs=2,
    backlog=500,
    kills=1,
    alive_s=(0.1, 0.2),
    at_once=2,
)


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other tool is installed, and runs report to a server, as by default."""
    monkeypatch.setattr(peers, "version", lambda peer: None)
    monkeypatch.delenv("AMPMON_MODE")
    monkeypatch.delenv("AMPMON_DIR")


def same_columns(rows: list[dict[str, Any]]) -> bool:
    return len({tuple(row) for row in rows}) == 1


@pytest.mark.filterwarnings("ignore::ampmon.client.troubles.AmpmonWarning")
def test_host_time_is_measured_in_every_situation(tmp_path: Path) -> None:
    """Each situation, cache state and number of tensors has a row, relative to the offline one of its kind."""
    rows = host_time.measure(tmp_path, TINY)

    assert same_columns(rows)
    assert len(rows) == 12
    assert {row["sender"] for row in rows} == {"none, offline", "busy", "server down"}
    assert {row["p50_to_offline"] for row in rows if row["sender"] == host_time.OFFLINE} == {1.0}


def test_training_keeps_its_pace() -> None:
    """Updates return no earlier than their turn, and without a pace as soon as possible."""
    ran: list[int] = []

    began = time.perf_counter_ns()

    returned = train(lambda: ran.append(1), 10, per_second=200.0)

    assert len(ran) == len(returned) == 10
    assert all(at - began >= 5e6 * update for update, at in enumerate(returned))
    assert train(lambda: ran.append(1), 10, per_second=0.0) == []
    assert len(ran) == 20


def test_an_update_is_seen_when_it_is_committed(tmp_path: Path) -> None:
    """Each step gets the time of the first read after its commit; an uncommitted step gets none."""
    path = tmp_path / "a.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = wal")
    writer.execute(
        "CREATE TABLE update_pages"
        " (run_id, stream, bucket, last_step, PRIMARY KEY (run_id, stream, bucket))"
    )
    ticks = iter(range(10**9))
    reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    seen: list[int] = []
    thread = threading.Thread(
        target=lambda: seen.extend(latency.first_seen(reader, 3, 1.0, lambda: next(ticks)))
    )

    writer.execute("INSERT INTO update_pages VALUES (1, 1, 0, 0)")
    thread.start()
    writer.execute("BEGIN")
    writer.execute("UPDATE update_pages SET last_step = 2")
    writer.execute("COMMIT")
    thread.join()

    assert len(seen) == 3
    assert seen[0] <= seen[1] == seen[2]
    reader.close()
    writer.close()


def test_a_backlog_is_made_and_delivered(tmp_path: Path) -> None:
    """Updates recorded without a server are stored once it starts; three processes have memory peaks and bars."""
    rows = backlog.measure(tmp_path, TINY)

    assert same_columns(rows)
    of = {row["what"]: row for row in rows}
    assert of["backlog"]["value"] == TINY.backlog
    assert of["backlog on disk"]["value"] > 0
    assert {name: of[f"{name}, RSS"]["bar"] for name in backlog.BARS_MB} == backlog.BARS_MB
    assert of["sender, RSS"]["value"] < of["server, RSS"]["value"]


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux says it there")
def test_the_peak_of_a_process_is_seen() -> None:
    """The RSS peak includes 64 MB that a process held briefly and has already freed."""
    code = "held = bytearray(b'x') * (64 << 20); del held; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        peak = Peak()
        peak.see(process.pid)
        process.communicate("\n")

    assert peak.rss > 64
    assert 0 < peak.pss < 64


def test_what_a_kill_leaves_is_compared_with_the_calls_that_returned() -> None:
    """A call with a missing or wrong value counts as lost; a value stored twice or never logged counts as doubled."""
    whole: tools.Found = {
        name: [(call, tools.scalars(call)[name]) for call in range(4)] for name in tools.NAMES
    }

    assert tail.compared(4, whole) == (0, 0)
    assert tail.compared(3, whole) == (0, 0), "the call under way may be there"
    assert tail.compared(2, whole) == (0, len(tools.NAMES)), "one after it was never made"
    assert tail.compared(6, whole) == (2, 0)
    assert tail.compared(4, {**whole, "loss": whole["loss"][:3]}) == (1, 0)
    assert tail.compared(4, {**whole, "loss": [*whole["loss"][:3], (3, 9.0)]}) == (1, 0)
    assert tail.compared(4, {**whole, "lr": [*whole["lr"], whole["lr"][0]]}) == (0, 1)
    assert tail.compared(4, {}) == (4, 0)


def test_a_killed_process_is_read_back_from_a_server(tmp_path: Path) -> None:
    """The server has every call of a killed process, killed alone or with its sender; a missing tool's row says so."""
    rows = tail.compare(tmp_path, [tools.AMPMON, "trackio"], TINY)

    assert same_columns(rows)
    assert [(row["kills"], row["lost_worst"], row["doubled"]) for row in rows[:2]] == [
        (1, 0, 0)
    ] * 2
    assert all(row["calls"] > 0 for row in rows[:2])
    assert {row["note"] for row in rows[2:]} == {"not measured: trackio is not installed"}


def test_raw_figures_are_not_in_the_table() -> None:
    """A column of lists appears only in the JSON."""
    text = report.as_markdown(
        "A",
        {"a": report.Benchmark("B", tail)},
        {"machine": {}, "command": "", "a": [{"x": 1, "raw": [1]}]},
    )

    assert "| x |" in text
    assert "raw" not in text.rpartition("##")[2].rpartition("\n\n")[2]
