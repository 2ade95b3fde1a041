"""Processor time of a process, as Linux tells it: hardly more where others use the machine too."""

from __future__ import annotations

import os
from pathlib import Path


def seconds(process: int) -> float | None:
    """What a process has used so far; None where nobody tells."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return None
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
