"""Tests that run trainings in the Python that has the frameworks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("FRAMEWORKS_PYTHON", ROOT / ".venv" / "frameworks" / "bin" / "python"))
"""It has torch and the frameworks, and what ampmon itself needs."""
HERE = ROOT / "tests" / "frameworks"
SHIM = HERE / "shim"
"""A `sitecustomize` that has frameworks train in fp16 on a CPU, and counts steps without ampmon."""


def environment_of(folder: Path, shim: str) -> dict[str, str]:
    """A training's environment: it leaves what it counts, and what ampmon records, in a folder."""
    mine = {
        "AMPMON_DIR": str(folder / "ampmon"),
        "AMPMON_MODE": "offline",
        "FRAMEWORKS_COUNT": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (SHIM, ROOT, ROOT / "server"))),
        "HF_HUB_OFFLINE": "1",
    }
    return {**os.environ, **mine, **({"FRAMEWORKS_SHIM": shim} if shim else {})}


def run(script: str, *arguments: str) -> str:
    """What a script beside this file prints. Raises AssertionError, with what it printed, where it fails."""
    command = [PYTHON, ROOT / "tests" / "frameworks" / script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
