"""Runs files of tests in a process of their own: torch and Triton decide on import on which device they run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import scripts


TESTS = Path(__file__).parent


def passes(*suites: str, chosen: str = "", marked: str = "not rare", **environment: str) -> int:
    """How many tests of ``suites``, files below tests/, pass. Raises AssertionError with their output if one fails."""
    # numpy, which Triton's interpreter computes with, warns of overflows that are meant.
    quiet = ("-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning")
    done = scripts.run(
        *("-m", "pytest", *quiet, "-k", chosen, "-m", marked),
        *(str(TESTS / suite) for suite in suites),
        cwd=TESTS.parent,
        preload="torch",
        env={**os.environ, **environment},
    )
    passed = re.search(r"\b(\d+) passed", done.stdout)
    assert passed, done.stdout
    return int(passed[1])
