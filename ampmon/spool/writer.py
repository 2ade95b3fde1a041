"""The writing end of a spool, in the training process: one `os.write` for a record, no waiting for a disk."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from pathlib import Path
from uuid import UUID

from ampmon.errors import SpoolError
from ampmon.spool import frame, layout
from ampmon.spool.destination import Destination


CLOSED = "closed"
_RETIRED_MAX = 16
_CLOSED_FD = -1
_OPEN_FLAGS = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | os.O_APPEND
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
_sync_data = getattr(os, "fdatasync", os.fsync)


class SpoolWriter:
    """Appends the records of one attempt to ``directory/spool/<attempt id>/``.

    One thread at a time may append; `sync` may run beside it in another. Raises SpoolError at construction where the
    directory cannot be written, and never afterwards: ``failed`` counts what could not be kept, ``problem`` says why.
    """

    def __init__(
        self,
        directory: Path,
        attempt_id: UUID,
        destination: Destination,
        *,
        segment_bytes: int = layout.SEGMENT_BYTES,
    ) -> None:
        self.path = layout.attempt_directory(directory, attempt_id)
        self.failed = 0
        self.problem: str | None = None
        self._attempt_id = attempt_id
        self._segment_bytes = segment_bytes
        self._headers: dict[str, bytes] = {}
        self._retired: deque[int] = deque()
        self._end: int | None = None
        """Where the newest segment ends, if that is certain."""
        self._sync_lock = threading.Lock()
        try:
            self._make_directory(destination)
            self._tail = self._new_segment(0)
        except OSError as error:
            raise SpoolError(
                f"{directory} cannot be written ({error.strerror or error}): set AMPMON_DIR, or dir= of ampmon.init, "
                "to a directory of yours on a local disk with space left"
            ) from error

    def _make_directory(self, destination: Destination) -> None:
        # It takes its name with the destination in it, so that a sender never meets it half made.
        unborn = self.path.with_name(f".{self.path.name}")
        layout.make_private(unborn)
        destination.write(unborn)
        unborn.rename(self.path)

    def append(self, payload: bytes) -> bool:
        """Write one record; it is on disk, though not yet synced, on return. False, and counted, where it is not.

        Never raises, and waits for nothing but the system call.
        """
        return self._write(frame.RECORD, payload, b"")

    def header(self, key: str, payload: bytes) -> bool:
        """Write what records build on: ``key`` is "attempt" or a stream's name, and the newest of a key holds.

        It begins every later segment too. Returns as `append` does.
        """
        self._headers[key] = payload
        return self._write(frame.HEADER, payload, key.encode())

    def sync(self) -> None:
        """Have the disk keep what was appended so far, power cut or not. Blocks: not for the training thread."""
        with self._sync_lock:
            retired = [self._retired.popleft() for _ in range(len(self._retired))]
            tail = self._tail[0]
            for fd in (*retired, tail) if tail != _CLOSED_FD else retired:
                with contextlib.suppress(OSError):
                    _sync_data(fd)
            for fd in retired:
                os.close(fd)

    def close(self) -> None:
        """No record follows: sync, and tell the sender that the spool may go once it is delivered."""
        fd = self._let_go()
        if fd == _CLOSED_FD:
            return
        self._retired.append(fd)
        self.sync()
        with contextlib.suppress(OSError):
            layout.replace_file(self.path / CLOSED, b"", durable=False)

    def abandon(self) -> None:
        """Let go without a trace in the file: for the child of a fork, whose parent goes on writing."""
        self._sync_lock = threading.Lock()
        for fd in (self._let_go(), *self._retired):
            if fd != _CLOSED_FD:
                os.close(fd)  # the child's own copy
        self._retired.clear()

    def _let_go(self) -> int:
        fd, number, salt = self._tail
        self._end = None
        self._tail = (_CLOSED_FD, number, salt)
        return fd

    def _write(self, kind: frame.Kind, payload: bytes, key: bytes) -> bool:
        try:
            fd, number, salt = self._tail
            offset = os.lseek(fd, 0, os.SEEK_CUR) if self._end is None else self._end
            if offset >= self._segment_bytes and self._rotate(fd, number + 1):
                if kind == frame.HEADER:
                    return True  # the new segment begins with it
                fd, number, salt = self._tail
                offset = os.lseek(fd, 0, os.SEEK_CUR)
            data = frame.encode(kind, payload, key, salt=salt, offset=offset)
            # An exception of a signal handler may fall between a write and its bookkeeping: the system is asked then.
            self._end = None
            written = os.write(fd, data)
            self._end = offset + written
            if written == len(data):
                return True
            self.problem = "the disk is full"
        except (OSError, ValueError) as error:
            self.problem = str(error)
        self.failed += 1
        return False

    def _rotate(self, fd: int, number: int) -> bool:
        """Go on in a new segment. Where none can be made, the old one just grows."""
        self._end = None
        try:
            self._tail = self._new_segment(number)
        except OSError as error:
            self.problem = str(error)
            return False
        # Closed by the next sync, which knows that nobody else still syncs it.
        self._retired.append(fd)
        if len(self._retired) > _RETIRED_MAX:
            with contextlib.suppress(IndexError):
                os.close(self._retired.popleft())
        return True

    def _new_segment(self, number: int) -> tuple[int, int, int]:
        path = layout.segment_path(self.path, number)
        # Under its own name only once it has its headers: from then on the reader takes the last one for complete.
        unborn = path.with_suffix(".new")
        unborn.unlink(missing_ok=True)
        fd = os.open(unborn, _OPEN_FLAGS, layout.FILE_MODE)
        try:
            salt = frame.salt_of(self._attempt_id, number)
            headers = b""
            for key, payload in self._headers.items():
                headers += frame.encode(
                    frame.HEADER, payload, key.encode(), salt=salt, offset=len(headers)
                )
            if os.write(fd, headers) != len(headers):
                raise OSError(errno.ENOSPC, "no space for the headers of a new segment")
            os.rename(unborn, path)
        except OSError:
            os.close(fd)
            raise
        return fd, number, salt
