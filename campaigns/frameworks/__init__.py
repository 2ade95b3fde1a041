"""Runs trainings in the Python environment that has the frameworks, for the tests in this folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recording import Recording, recordings


ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("FRAMEWORKS_PYTHON", ROOT / ".venv" / "frameworks" / "bin" / "python"))
"""It has torch, the frameworks, and ampmon's own dependencies."""
SET = os.environ.get("FRAMEWORKS_SET", "newest")
"""Which supported versions it has: the newest or the oldest."""
SOURCES = PYTHON.parents[1] / "sources"
"""Source distributions, for examples that packages do not install."""
HERE = Path(__file__).parent
SHIM = HERE / "shim"
"""A `sitecustomize` that makes frameworks train in fp16 on a CPU, and counts steps without ampmon."""


def environment_of(folder: Path, shim: str, data: Path | None = None) -> dict[str, str]:
    """The environment of a training that leaves its counts, and ampmon's records, in ``folder``."""
    data = data or folder
    mine = {
        "AMPMON_DIR": str(folder / "ampmon"),
        "AMPMON_MODE": "offline",
        "FRAMEWORKS_COUNT": str(folder),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (SHIM, ROOT, ROOT / "server"))),
        "HF_HUB_OFFLINE": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "YOLO_AUTOINSTALL": "0",
        "YOLO_CONFIG_DIR": str(data),
        "YOLO_OFFLINE": "1",
        "nnUNet_def_n_proc": "1",
        "nnUNet_n_proc_DA": "0",
        "nnUNet_extTrainer": str(data / "trainers"),
        "nnUNet_raw": str(data / "raw"),
        "nnUNet_preprocessed": str(data / "preprocessed"),
        "nnUNet_results": str(folder / "results"),
    }
    return {**os.environ, **mine, **({"FRAMEWORKS_SHIM": shim} if shim else {})}


def ran(
    words: Iterable[str | Path], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``words`` in PYTHON to the end. Raises AssertionError with the output if that fails."""
    command, nothing = [PYTHON, *words], subprocess.DEVNULL
    done = subprocess.run(
        command, env=environment, stdin=nothing, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def use(folder: Path, script: str, *words: str, shim: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script of this folder that takes the folder and ``words``."""
    return ran([HERE / script, folder, *words], environment_of(folder, shim))


def counted(script: str, *words: str) -> dict[str, Any]:
    """Run a script of this folder, and return what it counted."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SHIM, ROOT)))}
    lines = ran([HERE / script, *words], environment).stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("COUNTED ")]
    counts: dict[str, Any] = json.loads(line.removeprefix("COUNTED "))
    return counts


def make(name: str, folder: Path) -> None:
    """Make the data ``name`` of data.py, in the Python that has the frameworks."""
    folder.mkdir()
    ran([HERE / "data.py", name, folder], environment_of(folder, ""))


def train(
    folder: Path, *words: str, shim: str, watched: bool, data: Path | None = None
) -> list[Any]:
    """Run ``words`` in PYTHON. Return the weights, and each rank's optimizer steps by torch's own count."""
    folder.mkdir()
    watch = ["-m", "ampmon_server.cli", "run", PYTHON] if watched else []
    ran([*watch, *words], environment_of(folder, shim, data))
    weights = torch.load(folder / "weights.pt", weights_only=True)
    steps = [json.loads(path.read_text()) for path in sorted(folder.glob("steps-*.json"))]
    return [weights, steps]


def train_alike(
    folder: Path, words_of: Callable[[Path], Sequence[str]], *, shim: str, data: Path | None = None
) -> tuple[list[int], list[Recording]]:
    """Train with and without ampmon, and check that weights and steps are the same.

    ``words_of`` returns the words for a folder. Returns each rank's optimizer steps, and the recordings.
    """
    (weights, steps), (stock, stock_steps) = [
        train(place, *words_of(place), shim=shim, watched=place.name == "True", data=data)
        for place in (folder / "True", folder / "False")
    ]
    assert_same(weights, stock)
    assert steps == stock_steps
    return steps, recordings(folder / "True" / "ampmon")


def assert_same(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert [*weights] == [*others]
    for name, values in weights.items():
        assert torch.equal(values, others[name]), name


def skips(recorded: Recording) -> list[bool]:
    return [update.optimizers[0].skipped for update in recorded.updates]
