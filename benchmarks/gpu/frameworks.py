"""Runs unchanged framework trainings on a GPU under `ampmon run`, beside the same without ampmon.

The trainings of all installed frameworks run at once, because nothing is timed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.stage_results import StageResults


BAR = "frameworks' scripts that end in the same weights, recorded whole"
TRAININGS = {
    "trainer": "transformers",
    "accelerate": "accelerate",
    "lightning flag": "lightning",
    "lightning plugin": "lightning",
    "lightning own": "lightning",
    "fabric": "lightning",
    "timm": "timm",
}
"""Trainings that do not request the CPU, and the package that each needs."""


def run(results: StageResults, place: str, limit_s: float) -> None:
    """The bar holds if all trainings of installed frameworks do."""
    os.environ |= {"FRAMEWORKS_PYTHON": sys.executable, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    here = [training for training, package in TRAININGS.items() if find_spec(package)]
    if not here:
        results.bar(BAR, None, None, "all", "no framework is installed")
        return
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(here)) as threads:
        folders = [Path(folder, training.replace(" ", "-")) for training in here]
        why = dict(zip(here, threads.map(failure, here, folders), strict=True))
    failures = {training: words for training, words in why.items() if words}
    results.failures(failures)
    holding = len(here) - len(failures)
    results.bar(BAR, not failures, f"{holding} of {len(here)}", "all", ", ".join(here))


def failure(training: str, folder: Path) -> str:
    """Why a training does not hold, or an empty string."""
    from campaigns.frameworks.trainings import assert_unchanged  # reads FRAMEWORKS_PYTHON on import

    folder.mkdir()
    try:
        assert_unchanged(training, folder)
    except Exception:
        return traceback.format_exc()
    return ""
