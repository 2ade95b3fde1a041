"""Rounds of tests beside busy loops, at their smallest. `make busy` runs the whole suite so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from campaigns.busy.rounds import busy_loops, failures, run


TESTS = """
def test_right():
    pass

def test_wrong():
    raise AssertionError
"""


def test_a_failing_test_is_listed_and_a_round_without_tests_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing test is named with its number of rounds, and a round that ran no test has not passed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # it starts faster without
    file, report = tmp_path / "test_two.py", tmp_path / "junit.xml"
    file.write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    command += ["-c", "/dev/null", f"--junitxml={report}", str(file)]
    with busy_loops(1):
        found = run(command, report)
        nothing = run([sys.executable, "-c", ""], report)

    assert (found.passed, found.tests, found.exit_code) == (False, 2, 1)
    assert failures([found, nothing]) == ["failed in 1 of 2 rounds: test_two::test_wrong"]
    assert (nothing.passed, nothing.tests) == (False, 0)
