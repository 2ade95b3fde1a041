"""Elects the sender of a data directory on this machine: the process that holds the lock on a file there.

Each machine and container has its own sender, since only there can a process see which writers are gone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from ampmon.identity.process import place
from ampmon.spool import layout
from ampmon.system import private


_TRIES = 5
_PAUSE_S = 0.02
_FORGOTTEN_S = 30 * 86400
_WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})


class SenderLock:
    """The sender's lock, held until `resign` or the end of the process."""

    def __init__(self, path: Path, fd: int, lock_fd: int) -> None:
        self._path = path
        self._fd = fd
        self._lock_fd = lock_fd

    def is_held(self) -> bool:
        """Whether the lock file is still in place. Once it was deleted, another process may make and lock a new one."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def resign(self) -> None:
        # A set, because both are the same descriptor where the file has locks.
        for fd in {self._fd, self._lock_fd}:
            os.close(fd)


def home(directory: Path) -> Path:
    """The folder of this machine's sender in a data directory."""
    return directory / "senders" / place()


def forget(directory: Path) -> None:
    """Remove folders of other senders unchanged for 30 days, since each container leaves one. Raises OSError.

    A live sender writes its status every second. A suspended one finds its lock file gone, and ends.
    """
    folder = home(directory).parent
    now_s = layout.time_at(folder)
    for each in folder.iterdir():
        changed_s = max(path.stat().st_mtime for path in (each, *each.glob("*")))
        if each != home(directory) and now_s - changed_s >= _FORGOTTEN_S:
            shutil.rmtree(each, ignore_errors=True)


def elect(directory: Path) -> SenderLock | None:
    """Become the sender of ``directory`` here, or return None if another process is. Raises OSError.

    Tries for 0.1 s, since `is_held` takes the lock for a moment too.
    """
    path = home(directory) / "lock"
    private.directory(directory, "senders", place())
    fd = private.open_file(path, os.O_RDWR | os.O_CREAT)
    for attempt in range(_TRIES):
        lock_fd = _locked(fd, path, shared=False)
        if lock_fd is not None:
            return SenderLock(path, fd, lock_fd)
        if attempt + 1 < _TRIES:
            time.sleep(_PAUSE_S)
    os.close(fd)
    return None


def is_held(directory: Path) -> bool:
    """Whether a process here is the sender of ``directory``. Raises OSError."""
    path = home(directory) / "lock"
    try:
        fd = private.open_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        lock_fd = _locked(fd, path, shared=True)
        if lock_fd not in (None, fd):
            os.close(lock_fd)
        return lock_fd is None
    finally:
        os.close(fd)


def _locked(fd: int, path: Path, *, shared: bool) -> int | None:
    """The descriptor that holds the lock, or None if another process has it. A local file's if ``fd`` has no locks."""
    try:
        return fd if _lock(fd, shared=shared) else None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    lock_fd = private.open_file(_on_local_disk(path), os.O_RDWR | os.O_CREAT)
    if _lock(lock_fd, shared=shared):
        return lock_fd
    os.close(lock_fd)
    return None


def _on_local_disk(path: Path) -> Path:
    """The local lock file for ``path``. It only excludes other processes of this user on this machine."""
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
    return private.on_this_machine(f"{name}.lock")


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

    # Not lockf: that lock ends as soon as the process closes any descriptor of the file, as
    # `is_held` does in a training that sends on a thread.
    def _lock(fd: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
