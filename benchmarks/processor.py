"""Processor time of processes on Linux. Other load on the machine hardly raises it."""

from __future__ import annotations

import os
from pathlib import Path


_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat behind the name: the parent; the times of a process, and of children that have ended."""


def seconds(*processes: int) -> float | None:
    """The processor time that processes and those they started have used so far, or None if not on Linux."""
    if not Path("/proc/self/stat").exists():
        return None
    fields = {each: _fields(each) for each in _running()}
    counted, new = set[int](), set(processes)
    while new:
        counted |= new
        new = {each for each, found in fields.items() if int(found[_PARENT]) in new} - counted
    ticks = sum(int(time) for each in counted for time in fields.get(each, [])[_TIMES])
    return ticks / os.sysconf("SC_CLK_TCK")


def _running() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]


def _fields(process: int) -> list[bytes]:
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()  # a name need not be text
    except OSError:  # it has ended meanwhile
        return [b"", b"0"]
    return stat.rpartition(b")")[2].split()
