"""What the server has to say to a run: the sender leaves it in the spool, for its writer.

The file `findings` has what is wrong with the run, and `request` says when somebody asked for a measurement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ampmon.system import private


_NAME, _REQUEST = "findings", "request"


class Answers:
    """The sender's side: writes what is new into the spool at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path, self._request = path / _NAME, path / _REQUEST
        self._written: tuple[dict[str, Any], ...] | None = None
        self._asked: int | None = None

    def keep(self, findings: tuple[dict[str, Any], ...] | None) -> None:
        """Leave what was found, where it is known and not there yet. Does not raise: it comes with the next answer."""
        if findings is None or findings == self._written:
            return
        try:
            private.replace(self._path, msgspec.msgpack.encode(findings), durable=False)
        except OSError:
            return  # the disk is full, or the spool was taken over or sent to its end
        self._written = findings

    def ask(self, request: int | None) -> None:
        """Leave a request where it is not there yet. One that was served stays: the next is another. Does not raise."""
        if request not in {None, self._asked}:
            with contextlib.suppress(OSError):
                private.replace(self._request, str(request).encode(), durable=False)
                self._asked = request


class AnswersReader:
    """The process's side: reads them when they have changed."""

    def __init__(self) -> None:
        self._read: tuple[int, int] | None = None

    def news(self, path: Path) -> Sequence[Any] | None:
        """What lies in the spool at ``path`` now, not yet checked; None where it is not new. Raises OSError."""
        try:
            stat = (path / _NAME).stat()
            if (stamp := (stat.st_mtime_ns, stat.st_ino)) == self._read:
                return None
            content = (path / _NAME).read_bytes()
        except FileNotFoundError:
            return None
        self._read = stamp
        try:
            return msgspec.msgpack.decode(content, type=list[Any])
        except msgspec.DecodeError:
            return None


def requested(path: Path) -> int | None:
    """The newest request in the spool at ``path``, if there is one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((path / _REQUEST).read_bytes()[:32])
    return None
