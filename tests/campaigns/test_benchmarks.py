"""One benchmark at its smallest, and one that misses its bar. `make test-campaigns` runs all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as benchmarks
from benchmarks import commits, peers, peers_gradients, processor, report
from benchmarks.paired import Ratio


def test_a_benchmark_measures_and_a_bar_that_does_not_hold_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools are measured on the same gradients, a missing one is noted, and a ratio above its bar does not hold."""
    monkeypatch.setattr(peers, "version", lambda peer: None)
    names = (peers_gradients.CONTROL, "ampmon, default", "wandb.watch")
    tools = {name: peers_gradients.TOOLS[name] for name in names}

    control, ours, peer = peers_gradients.compare([torch.randn(100)], tmp_path, tools, rounds=2)

    assert (control["elements"], ours["elements"]) == (0, 100)
    assert ours["ratio"] is not None
    assert (peer["ratio"], peer["note"]) == (None, "not measured: wandb is not installed")
    assert "peers_gradients" in benchmarks.BENCHMARKS
    assert Ratio(0.2, 0.1, 0.3).row(bar=0.3)["holds"] == "yes"
    assert Ratio(0.5, 0.4, 0.6).row(bar=0.3)["holds"] == "no"


def test_a_result_is_the_same_bytes_each_time_and_never_large(tmp_path: Path) -> None:
    """The same figures give the same bytes and can be read back. Figures over the size limit raise an error."""
    figures = {"rows": [{"what": "ampmon", "ratio": 1.25}]}
    for name in "ab":
        report.write(tmp_path / name, "# Result\n", figures)
    assert report.read(tmp_path / "a") == figures
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert (tmp_path / "a.md").read_text() == "# Result\n"

    many = {"times": torch.rand(10_000).tolist()}
    with pytest.raises(
        ValueError, match=r"c\.json\.gz would have \d+ bytes, and 50000 is the limit"
    ):
        report.write(tmp_path / "c", "# Result\n", many)
    assert sorted(each.name for each in tmp_path.glob("c*")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_processor_time_is_counted_beside_any_name_of_a_process() -> None:
    """A process whose name the system cut within a character does not end the count."""
    work = r"open('/proc/self/comm', 'wb').write(b'caf\xc3'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as named:
        assert named.stdout is not None
        named.stdout.readline()
        assert processor.seconds(os.getpid()) is not None
        named.communicate(b"\n")


def test_a_commit_has_a_plus_only_if_its_files_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log file beside the code adds no plus, so a resumed campaign finds its results. A changed file adds one."""
    monkeypatch.setattr(commits, "__file__", str(tmp_path / "commits.py"))
    assert commits.newest(":/") == "unknown"
    (tmp_path / "code").write_text("1")
    commits.git("init", "--quiet")
    commits.git("add", "code")
    who = ("-c", "user.name=ada", "-c", "user.email=ada@localhost")
    commits.git(*who, "commit", "--quiet", "--message", "Begin")
    (tmp_path / "gpu.log").write_text("began")
    commit = commits.newest(":/", digits="12")
    assert commit == commits.git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "code").write_text("2")
    assert commits.newest(":/", digits="12") == f"{commit}+"
