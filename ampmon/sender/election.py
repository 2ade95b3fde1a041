"""Which process is the sender of a data directory: the one that holds a lock on `sender.lock` in it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ampmon.spool import make_private


_NAME = "sender.lock"
_TRIES = 5
_PAUSE_S = 0.02


class Office:
    """The right to be the sender, until `resign` or the end of the process."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    def is_held(self) -> bool:
        """Whether it still is the right: not once the directory was deleted, where another may be made in its place."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def resign(self) -> None:
        os.close(self._fd)


def elect(directory: Path) -> Office | None:
    """Become the sender of ``directory``, or None where another process is it. Raises OSError.

    Tries for 0.1 s, since `is_held` takes the lock for a moment too.
    """
    make_private(directory)
    path = directory / _NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for attempt in range(_TRIES):
        if _lock(fd, shared=False):
            return Office(fd, path)
        if attempt + 1 < _TRIES:
            time.sleep(_PAUSE_S)
    os.close(fd)
    return None


def is_held(directory: Path) -> bool:
    """Whether some process is the sender of ``directory``. Raises OSError."""
    try:
        fd = os.open(directory / _NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not _lock(fd, shared=True)
    finally:
        os.close(fd)


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int, *, shared: bool) -> bool:
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(fd: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
