"""Describes the machine of a measurement by its kind, never by its host name."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import torch

from benchmarks.peers import version


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = re.findall(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)
        if models:
            return str(models[0])
    return platform.processor() or platform.machine()


def gpu() -> str | None:
    """The model of the first CUDA device, or None."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def describe() -> dict[str, object]:
    """What the figures depend on: processor, cores, GPU, system and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "gpu": gpu() or "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "triton": version("triton") or "not installed",
        "torch_threads": torch.get_num_threads(),
    }


def slug() -> str:
    """The machine as a file name."""
    words = re.sub(r"\((R|TM)\)|\bCPU\b|@.*$", "", processor(), flags=re.IGNORECASE)
    named = f"{words} {os.cpu_count()} cores {gpu() or ''}"
    return re.sub(r"[^a-z0-9]+", "-", named.lower()).strip("-")
