"""What the server found wrong with a run: the sender leaves it in the spool, in the file `findings`, for its writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ampmon import private


_NAME = "findings"


class Answers:
    """The sender's side: writes what is new into the spool at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path / _NAME
        self._written: tuple[dict[str, Any], ...] | None = None

    def keep(self, findings: tuple[dict[str, Any], ...] | None) -> None:
        """Leave what was found, where it is known and not there yet. Does not raise: it comes with the next answer."""
        if findings is None or findings == self._written:
            return
        try:
            private.replace(self._path, msgspec.msgpack.encode(findings), durable=False)
        except OSError:
            return  # the disk is full, or the spool was taken over or sent to its end
        self._written = findings


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
