"""The end of a spool: creates segments, appends frames to the newest, and notices if the directory is removed."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections import deque
from pathlib import Path
from uuid import UUID

from ampmon.spool import frame, layout, state
from ampmon.spool.state import Destination
from ampmon.system import private, signals


if sys.platform != "win32":
    import fcntl

_RETIRED_MAX = 16
_RETRIES = 64
"""If no segment can be made, the times that frames try again per segment's length."""
_NO_FD = -1
_LOSSES = frozenset({errno.EIO, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
_HIGH = 1000
_ROOM = 2 * _RETIRED_MAX
"""How far below the process's limit descriptors begin, if that is lower."""
_OPEN_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)


class SpoolTail:
    """Appends frames to the spool at ``path``.

    One thread at a time may `write`; `sync` and `look` may run beside it in another. Raises OSError at construction if
    the directory cannot be written. ``remade`` counts how often the spool was recreated after somebody removed it.
    ``unsynced`` says why a sync failed, or is None. The system reports that once, and may then drop what was written.
    """

    def __init__(
        self, path: Path, attempt_id: UUID, destination: Destination, segment_bytes: int
    ) -> None:
        self.path = path
        self.remade = 0
        self.unsynced: str | None = None
        self._attempt_id = attempt_id
        self._destination = destination
        self._segment_bytes = segment_bytes
        self.headers: dict[str, bytes] = {}
        """The newest payload of each key. Every later segment begins with them."""
        self._retired: deque[int] = deque()
        self._sync_lock = threading.Lock()
        self._gone = False
        self._named = False
        """Whether a segment got its name since the last `sync`."""
        self._rotate_at = 0
        """The offset from which on frames go to the next segment."""
        self._end: int | None = None
        """Where the newest segment ends, or None if that is uncertain."""
        self._make_directory()
        # One tuple, so that no other thread sees the descriptor of one segment and the number of another.
        self._file = self._new_segment(0)

    def write(self, payload: bytes, key: str = "") -> None:
        """Append a record, or the header of a key. If the disk refuses it, append no part of it.

        Waits only for system calls. Raises OSError, and ValueError for a payload too long for a frame.
        """
        fd, number, salt = self._file
        offset = self._size(fd) if self._end is None else self._end
        if offset >= self._rotate_at:
            self._rotate(fd, number + 1, offset)
            fd, number, salt = self._file
            offset = self._size(fd)
        if key:
            data = frame.encode(frame.HEADER, payload, key.encode(), salt=salt, offset=offset)
        else:
            data = frame.encode(frame.RECORD, payload, salt=salt, offset=offset)
        # A signal handler may raise between the write and its bookkeeping. Then the system is asked for the end.
        self._end = None
        try:
            written = os.write(fd, data)
            if written < len(data):
                self._write_rest(fd, data[written:], offset)
        except OSError:
            self._rotate_at = 0  # go to a new segment: the end of this one is uncertain
            raise
        self._end = offset + len(data)

    def lacks_header(self) -> None:
        """Have the next frame begin a new segment, because a header could not be written. Callable from any thread."""
        self._rotate_at = 0

    def look(self) -> int:
        """Return the spool's bytes. If somebody removed it, the next frame recreates it. Blocks. Raises OSError."""
        _, number, _ = tail = self._file
        try:
            there = os.stat(layout.segment_path(self.path, number))
            gone = not os.path.samestat(there, os.fstat(tail[0]))
        except (FileNotFoundError, NotADirectoryError):
            gone = True
        # Unless the next segment has begun meanwhile.
        if gone and tail is self._file:
            self._gone = True
            self._rotate_at = 0
        return layout.bytes_behind(self.path, layout.Position(0, 0))

    def sync(self) -> None:
        """Sync appended frames, the names of their files, and where they are sent, to disk. Blocks."""
        with self._sync_lock:
            if self._named:
                # Cleared first, because another segment may get its name meanwhile.
                self._named = False
                above = list(self.path.parents)[:2]
                for each in (self.path / layout.DESTINATION, self.path, *above):
                    with contextlib.suppress(OSError):  # not every system syncs directories
                        layout.sync_path(each)
            retired = [self._retired.popleft() for _ in range(len(self._retired))]
            tail = self._file[0]
            for fd in (*retired, tail) if tail != _NO_FD else retired:
                self._sync(fd)
            for fd in retired:
                _close(fd)

    def close(self) -> None:
        """Sync, and mark the spool as closed for the sender. No frame may follow. Blocks."""
        self._retired.append(self._let_go())
        self.sync()
        with contextlib.suppress(OSError):
            state.close(self.path)

    def abandon(self) -> None:
        """Close files without a trace in the spool: for the child of a fork, whose parent goes on writing."""
        self._sync_lock = threading.Lock()
        for fd in (self._let_go(), *self._retired):
            _close(fd)  # the child's own copy
        self._retired.clear()

    def _let_go(self) -> int:
        fd, number, salt = self._file
        self._end = None
        self._file = (_NO_FD, number, salt)
        return fd

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)
        except OSError as error:
            if error.errno in _LOSSES:
                self.unsynced = error.strerror

    def _size(self, fd: int) -> int:
        # Without its descriptor a segment is at its end.
        return self._rotate_at if _is_lost(fd) else os.lseek(fd, 0, os.SEEK_END)

    def _write_rest(self, fd: int, rest: bytes, start: int) -> None:
        """Write the rest after a partial write, as on a full disk. If that fails, truncate the file to ``start``."""
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, start)
            raise

    def _rotate(self, fd: int, number: int, offset: int) -> None:
        """Start a new segment. If that fails, go on with the old one, if it is still there."""
        self._end = None
        lost = _is_lost(fd)
        try:
            if self._gone:
                self._make_directory()
            self._file = self._new_segment(number)
        except OSError as error:
            self._rotate_at = 0
            if self._gone:
                raise
            signals.let_through(error)
            self._rotate_at = offset + self._segment_bytes // _RETRIES
            return
        self.remade += self._gone
        self._gone = False
        if lost:  # with all others, and the new segment has one of their numbers
            self._retired.clear()
        else:  # the next sync closes it, once no other sync uses it
            self._retired.append(fd)
        # While a sync hangs, the process must not run out of descriptors.
        if len(self._retired) > _RETIRED_MAX:
            with contextlib.suppress(IndexError):
                _close(self._retired.popleft())

    def _make_directory(self) -> None:
        if self.path.is_dir():  # only its files were removed
            self._destination.write(self.path)
            return
        # Renamed once it holds the destination, so a sender never finds it half made.
        unborn = self.path.with_name(f".{self.path.name}")
        private.make(unborn)
        self._destination.write(unborn)
        private.rename(unborn, self.path)

    def _new_segment(self, number: int) -> tuple[int, int, int]:
        path = layout.segment_path(self.path, number)
        # Renamed once it holds its headers: from then on, the reader takes the previous segment for complete.
        unborn = path.with_suffix(".new")
        unborn.unlink(missing_ok=True)
        fd = _high(os.open(unborn, _OPEN_FLAGS, private.FILE_MODE))
        # First, because `lacks_header` may be called while the segment is made.
        self._rotate_at = self._segment_bytes + sum(map(len, list(self.headers.values())))
        try:
            salt = frame.salt_of(self._attempt_id, number)
            headers = b""
            for key, payload in list(self.headers.items()):
                headers += frame.encode(
                    frame.HEADER, payload, key.encode(), salt=salt, offset=len(headers)
                )
            self._write_rest(fd, headers, 0)
            private.rename(unborn, path)
            self._named = True
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                unborn.unlink()
            raise
        return fd, number, salt


def _high(fd: int) -> int:
    """Give a file a descriptor that no file of the script gets, even after the script has closed all of them."""
    if sys.platform != "win32":
        # The limit is -1 if there is none.
        for least in (_HIGH, os.sysconf("SC_OPEN_MAX") - _ROOM):
            with contextlib.suppress(OSError):
                high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
                os.close(fd)
                return high
    return fd


def _is_lost(fd: int) -> bool:
    """Whether the script closed the descriptor, as it may close all of them."""
    try:
        os.fstat(fd)
    except OSError as error:
        return fd != _NO_FD and error.errno == errno.EBADF
    return False


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):  # the script closed it
        os.close(fd)
