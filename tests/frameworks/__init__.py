"""Tests that run trainings in the Python that has the frameworks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("FRAMEWORKS_PYTHON", ROOT / ".venv" / "frameworks" / "bin" / "python"))
"""It has torch and the frameworks, and what ampmon itself needs."""


def run(script: str, *arguments: str) -> str:
    """What a script beside this file prints. Raises AssertionError, with what it printed, where it fails."""
    command = [PYTHON, ROOT / "tests" / "frameworks" / script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
