"""A clock that several processes go by, and that one of them sets forward; in between it goes as fast as any other."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path


_FORM = struct.Struct("<qq")


class Clock:
    """Kept in a file. What it shows is the time that it was set to, and how long ago that was."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(_FORM.size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _FORM.size)

    def set(self, us: int) -> None:
        """Show this time, in microseconds since the epoch, from now on."""
        _FORM.pack_into(self._shared, 0, 1000 * us, time.monotonic_ns())

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        shown, since = _FORM.unpack_from(self._shared)
        return int(shown + time.monotonic_ns() - since)

    def time(self) -> float:
        """Seconds since the epoch."""
        return self.time_ns() / 1e9
