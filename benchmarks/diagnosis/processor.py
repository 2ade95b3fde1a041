"""Processor time of a process on Linux. Other load on the machine hardly raises it."""

from __future__ import annotations

import os
from pathlib import Path


def seconds(process: int) -> float | None:
    """The processor time that a process has used so far, or None if not on Linux."""
    stat = Path(f"/proc/{process}/stat")
    if not stat.exists():
        return None
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
