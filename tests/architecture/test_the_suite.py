"""What the suite reports about itself: skipped tests and the cost of each folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import costs
import scripts
from tools import NGINX


TESTS = Path(__file__).parents[1]
SUITE = f"""
import pytest

def test_that_passes(): pass

@pytest.mark.skipif(True, reason={NGINX.missing!r})
def test_that_needs_nginx(): pass

@pytest.mark.gpu
def test_that_needs_a_gpu(): pass

@pytest.mark.skipif({{other}}, reason="for no good reason")
def test_of_another_kind(): pass
"""


def run(folder: Path, other: bool, *arguments: str) -> tuple[int, list[str]]:
    """Run pytest on SUITE in the folder and return the exit code and the printed lines."""
    file = folder / "test_it.py"
    file.write_text(SUITE.format(other=other))
    command = ["-m", "pytest", "-q", "-p", "skips", "-p", "no:schemathesis", "-c", os.devnull]
    command += ["--rootdir", str(folder), str(file), *arguments]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = scripts.run(*command, env=environment, cwd=TESTS, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_last_lines_say_what_was_skipped_and_how_to_install_it(tmp_path: Path) -> None:
    """The last lines count tests skipped for a missing program, with the command that installs it, and no others."""
    code, printed = run(tmp_path, True)

    assert code == 0
    assert printed[-2:] == [
        "1 tests were skipped: nginx is missing",
        "Install what they need: make test-tools",
    ]


def test_a_complete_run_fails_if_it_skips_a_test_that_needs_no_gpu(tmp_path: Path) -> None:
    """With --complete, a skipped test is named and fails the run, unless it needs a GPU."""
    code, printed = run(tmp_path, True, "--complete")
    only_gpu, _ = run(tmp_path, False, "--complete", "-k", "not nginx")

    assert (code, only_gpu) == (1, 0)
    assert "1 tests were skipped: nginx is missing" in printed
    (other,) = [line for line in printed if line.startswith("Skipped, though")]
    assert "test_of_another_kind" in other


def test_a_folder_over_its_budget_is_named() -> None:
    """A folder over its budget, or without one, is reported and marked in the table."""
    spent = {"web/test_a.py": 3.0, "web/test_b.py": 1.0, "new/test_c.py": 0.1}
    under = {"web/test_a.py": 3.0}
    assert costs.over(spent, {"web": 3}) == ["web", "new"]
    assert costs.over(under, {"web": 3}) == []
    marked = [line for line in costs.table(spent, {"web": 3}) if "OVER BUDGET" in line]
    assert ["4.0 s" in line for line in marked] == [True, False]


def test_the_time_of_child_processes_counts() -> None:
    """The CPU time of a child process counts while it runs and after it ended."""
    spin = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    before = costs.spent_s()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = costs.spent_s() - before
    # Each kernel counter is truncated to hundredths of a second.
    assert running >= 0.25
    assert costs.spent_s() - before >= 0.25
