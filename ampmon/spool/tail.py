"""The end of a spool: makes its segments, appends frames to the newest, and notices when the directory is gone."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from pathlib import Path
from uuid import UUID

from ampmon.spool import frame, layout
from ampmon.spool.destination import Destination
from ampmon.system import private, signals


CLOSED = "closed"
_RETIRED_MAX = 16
_NO_FD = -1
_OPEN_FLAGS = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | os.O_APPEND
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


class SpoolTail:
    """Appends frames to the spool at ``path``.

    One thread at a time may `write`; `sync` and `look` may run beside it in another. Raises OSError at construction
    where the directory cannot be written. ``remade`` is how often the spool was made anew because somebody
    had removed it.
    """

    def __init__(
        self, path: Path, attempt_id: UUID, destination: Destination, segment_bytes: int
    ) -> None:
        self.path = path
        self.remade = 0
        self._attempt_id = attempt_id
        self._destination = destination
        self._segment_bytes = segment_bytes
        self.headers: dict[str, bytes] = {}
        """The newest of each key: what every later segment begins with."""
        self._retired: deque[int] = deque()
        self._sync_lock = threading.Lock()
        self._gone = False
        self._named = False
        """Whether a segment took its name since the last `sync`."""
        self._rotate_at = 0
        """The offset from which on a frame goes to the next segment."""
        self._end: int | None = None
        """Where the newest segment ends, if that is certain."""
        self._make_directory()
        self._file = self._new_segment(0)

    def write(self, payload: bytes, key: str = "") -> None:
        """Append a record, or the header of a key, whole or, where the disk refuses it, nothing of it.

        Waits for nothing but the system calls. Raises OSError, and ValueError for a payload that no frame holds.
        """
        fd, number, salt = self._file
        offset = self._size(fd) if self._end is None else self._end
        if offset >= self._rotate_at and self._rotate(fd, number + 1, offset):
            if key:
                return  # the new segment begins with it
            fd, number, salt = self._file
            offset = self._size(fd)
        if key:
            data = frame.encode(frame.HEADER, payload, key.encode(), salt=salt, offset=offset)
        else:
            data = frame.encode(frame.RECORD, payload, salt=salt, offset=offset)
        # An exception of a signal handler may fall between a write and its bookkeeping: the system is asked then.
        self._end = None
        try:
            written = os.write(fd, data)
            if written < len(data):
                self._write_rest(fd, data[written:], offset)
        except OSError:
            self._rotate_at = 0  # it is not certain what this segment holds at its end, or takes
            raise
        self._end = offset + len(data)

    def look(self) -> int:
        """The bytes that lie in the spool. Where somebody removed it, the next frame makes it anew. Blocks."""
        _, number, _ = tail = self._file
        try:
            there = os.stat(layout.segment_path(self.path, number))
            gone = not os.path.samestat(there, os.fstat(tail[0]))
        except (FileNotFoundError, NotADirectoryError):
            gone = True
        except OSError:
            gone = False  # not known
        if gone and tail is self._file:
            self._gone = True
            self._rotate_at = 0
        return layout.bytes_behind(self.path, layout.Position(0, 0))

    def sync(self) -> None:
        """Have the disk keep what was appended so far, and the names by which it is found. Blocks."""
        with self._sync_lock:
            if self._named:
                self._named = False
                for folder in (self.path, *list(self.path.parents)[:2]):
                    with contextlib.suppress(OSError):  # not every system syncs directories
                        layout.sync_directory(folder)
            retired = [self._retired.popleft() for _ in range(len(self._retired))]
            tail = self._file[0]
            for fd in (*retired, tail) if tail != _NO_FD else retired:
                self._sync(fd)
            for fd in retired:
                os.close(fd)

    def close(self) -> None:
        """No frame follows: sync, and mark the spool as closed for the sender. Blocks."""
        fd = self._let_go()
        if fd == _NO_FD:
            return
        self._retired.append(fd)
        self.sync()
        with contextlib.suppress(OSError):
            private.replace(self.path / CLOSED, b"", durable=False)

    def abandon(self) -> None:
        """Let go without a trace in the file: for the child of a fork, whose parent goes on writing."""
        self._sync_lock = threading.Lock()
        for fd in (self._let_go(), *self._retired):
            if fd != _NO_FD:
                os.close(fd)  # the child's own copy
        self._retired.clear()

    def _let_go(self) -> int:
        fd, number, salt = self._file
        self._end = None
        self._file = (_NO_FD, number, salt)
        return fd

    def _sync(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            os.fdatasync(fd) if hasattr(os, "fdatasync") else os.fsync(fd)

    def _size(self, fd: int) -> int:
        return os.lseek(fd, 0, os.SEEK_END)

    def _write_rest(self, fd: int, rest: bytes, start: int) -> None:
        """A disk that is full takes a part: ask it for the rest, and take back the part where it says no."""
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, start)
            raise

    def _rotate(self, fd: int, number: int, offset: int) -> bool:
        """Go on in a new segment. Where none can be made the old one just grows, if it is still there."""
        self._end = None
        try:
            if self._gone:
                self._make_directory()
            self._file = self._new_segment(number)
        except OSError as error:
            if self._gone:
                raise
            signals.let_through(error)
            self._rotate_at = offset + self._segment_bytes
            return False
        self.remade += self._gone
        self._gone = False
        # Closed by the next sync, which knows that nobody else still syncs it.
        self._retired.append(fd)
        if len(self._retired) > _RETIRED_MAX:
            with contextlib.suppress(IndexError):
                os.close(self._retired.popleft())
        return True

    def _make_directory(self) -> None:
        if self.path.is_dir():  # of which only the files were removed
            self._destination.write(self.path)
            return
        # It takes its name with the destination in it, so that a sender never meets it half made.
        unborn = self.path.with_name(f".{self.path.name}")
        private.make(unborn)
        self._destination.write(unborn)
        unborn.rename(self.path)

    def _new_segment(self, number: int) -> tuple[int, int, int]:
        path = layout.segment_path(self.path, number)
        # Under its own name only once it has its headers: from then on the reader takes the last one for complete.
        unborn = path.with_suffix(".new")
        unborn.unlink(missing_ok=True)
        fd = os.open(unborn, _OPEN_FLAGS, private.FILE_MODE)
        try:
            salt = frame.salt_of(self._attempt_id, number)
            headers = b""
            for key, payload in list(self.headers.items()):
                headers += frame.encode(
                    frame.HEADER, payload, key.encode(), salt=salt, offset=len(headers)
                )
            rest = headers
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.rename(unborn, path)
            self._named = True
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                unborn.unlink()
            raise
        self._rotate_at = len(headers) + self._segment_bytes
        return fd, number, salt
