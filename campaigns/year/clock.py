"""A clock shared by several processes. One of them sets it forward; in between it runs at normal speed."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path


_FORM = struct.Struct("<qq")


class Clock:
    """A clock in a file. It shows the time it was last set to, plus the time since then."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(_FORM.size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _FORM.size)

    def set(self, us: int) -> None:
        """Set the time, in microseconds since the epoch."""
        _FORM.pack_into(self._shared, 0, 1000 * us, time.monotonic_ns())

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        shown, since = _FORM.unpack_from(self._shared)
        return int(shown + time.monotonic_ns() - since)

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.time_ns() / 1e9
