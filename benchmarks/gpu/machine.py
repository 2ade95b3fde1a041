"""Everything a result depends on: the machine, its GPU and the versions of its software."""

from __future__ import annotations

import subprocess

import torch

from benchmarks import machine
from benchmarks.gpu.stage_results import StageResults


def run(results: StageResults, place: str, limit_s: float) -> None:
    for name, value in facts().items():
        results.fact(name, value)


def facts() -> dict[str, object]:
    """The machine, its GPU and its driver."""
    found = {**machine.describe(), "cuda": torch.version.cuda or torch.version.hip or "none"}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["multiprocessors"] = properties.multi_processor_count
        found["driver"] = driver()
    return found


def driver() -> str:
    """The driver's version from nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "not told"
    return done.stdout.split("\n")[0].strip()
