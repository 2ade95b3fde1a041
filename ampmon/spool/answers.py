"""The server's answers to a run. The sender leaves them in the spool, for its writer.

The file `findings` holds what is wrong with the run. `request` holds when somebody last asked for a measurement.
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
    """The sender's side: writes new answers into the spool at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path, self._request = path / _NAME, path / _REQUEST
        self._written: tuple[dict[str, Any], ...] | None = None
        self._asked: int | None = None

    def keep(self, findings: tuple[dict[str, Any], ...] | None) -> None:
        """Write the findings if they are known and new. Does not raise: the next answer brings them again."""
        if findings is None or findings == self._written:
            return
        try:
            private.replace(self._path, msgspec.msgpack.encode(findings), durable=False)
        except OSError:
            return  # the disk is full, or the spool was taken over or fully sent
        self._written = findings

    def ask(self, request: int | None) -> None:
        """Write a request if it is new. A served one stays until the next replaces it. Does not raise."""
        if request not in {None, self._asked}:
            with contextlib.suppress(OSError):
                private.replace(self._request, str(request).encode(), durable=False)
                self._asked = request


class AnswersReader:
    """The training process's side: reads findings when they have changed."""

    def __init__(self) -> None:
        self._read: tuple[int, int] | None = None

    def news(self, path: Path) -> Sequence[Any] | None:
        """Return the findings in the spool at ``path``, unvalidated, or None if they are not new. Raises OSError."""
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
    """The newest request in the spool at ``path``, or None. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((path / _REQUEST).read_bytes()[:32])
    return None
