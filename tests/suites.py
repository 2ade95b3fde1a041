"""Runs test files in their own process, because torch and Triton choose their device on import."""

from __future__ import annotations

import os
import re
from pathlib import Path

import scripts


TESTS = Path(__file__).parent


def passes(*suites: str, chosen: str = "", marked: str = "not rare", **environment: str) -> int:
    """The number of passed tests in ``suites``, files below tests/. Raises AssertionError if one fails."""
    # Triton's interpreter uses numpy, which warns of intended overflows.
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
