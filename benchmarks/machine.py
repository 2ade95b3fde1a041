"""Names the machine that figures were measured on by its kind, never by its host name."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import torch


def processor() -> str:
    """The processor's model."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = re.findall(r"^model name\s*: (.+)$", cpuinfo.read_text(), re.MULTILINE)
        if models:
            return str(models[0])
    return platform.processor() or platform.machine()


def describe() -> dict[str, object]:
    """What the figures depend on: processor, its cores, system and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
    }


def slug() -> str:
    """The machine as the name of a file."""
    words = re.sub(r"\((R|TM)\)|\bCPU\b|@.*$", "", processor(), flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9]+", "-", f"{words} {os.cpu_count()} cores".lower()).strip("-")
