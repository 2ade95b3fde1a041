"""Moves a spool's cursor past settled records, sets refused ones aside, and frees the disk space behind the cursor."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ampmon import wire
from ampmon.spool import Chunk, Cursor, Position, SpoolEntry, discard_segments, remove, segments
from ampmon.system import private


_REJECTED = "rejected"
_DURABLE_EVERY_S = 1.0
_FINISH_BYTES_MAX = 4096
_log = logging.getLogger(__name__)


class CursorKeeper:
    """Keeps the cursor of the spool at ``path``, and frees the disk space behind it."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.cursor = Cursor.read(path)
        self._path = path
        self._clock = clock
        self._durable_s = clock()

    @property
    def position(self) -> Position:
        return self.cursor.position

    def acknowledge(self, entries: list[SpoolEntry]) -> None:
        """Move past records that the server has stored. Raises OSError."""
        if entries:
            finished = self.cursor.finished or any(_is_finish(entry.payload) for entry in entries)
            corrupt = self.cursor.corrupt + sum(entry.corrupt for entry in entries)
            self._move(entries[-1].end, finished=finished, corrupt=corrupt)

    def pass_by(self, chunk: Chunk) -> None:
        """Move past a chunk, headers and damage included. Raises OSError."""
        if chunk.end != self.position or chunk.corrupt:
            self._move(chunk.end, corrupt=self.cursor.corrupt + chunk.corrupt)

    def set_aside(self, entry: SpoolEntry, reason: str) -> None:
        """Move past a refused record, and keep it with the reason in the file `rejected`. Raises OSError."""
        line = msgspec.json.encode(
            {"time": time.time_ns() // 1000, "reason": reason, "record": entry.payload}
        )
        fd = private.open_file(self._path / _REJECTED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(fd, line + b"\n")
        finally:
            os.close(fd)
        cursor = self.cursor
        self._move(entry.end, rejected=cursor.rejected + 1, corrupt=cursor.corrupt + entry.corrupt)

    def keeps_records(self) -> bool:
        """Whether refused records lie in the spool. Checks the disk, since their count may be lost with the cursor."""
        return (self._path / _REJECTED).exists()

    def remove(self) -> None:
        """Free the disk space of a delivered spool, except for records set aside. Raises OSError."""
        if not self.keeps_records():
            remove(self._path)
            return
        last = segments(self._path)[-1:]
        if last:
            self._move(Position(last[0] + 1, 0))

    def _move(self, end: Position, **changes: Any) -> None:
        now_s = self._clock()
        next_segment = end.segment != self.cursor.segment
        durable = next_segment or now_s - self._durable_s >= _DURABLE_EVERY_S
        cursor = msgspec.structs.replace(
            self.cursor, segment=end.segment, offset=end.offset, **changes
        )
        self.cursor = cursor
        try:
            cursor.write(self._path, durable=durable)
        except OSError:
            # Go on: on a full disk, delivery frees space. An old cursor only costs a resend, which is ignored.
            _log.exception("the cursor of %s cannot be written", self._path)
        if durable:
            self._durable_s = now_s
        if next_segment:
            discard_segments(self._path, before=end.segment)


def _is_finish(payload: bytes) -> bool:
    """Whether a record is the attempt's own finish event. Large records cannot be, and are not decoded."""
    if len(payload) > _FINISH_BYTES_MAX or b"finish" not in payload:
        return False
    try:
        record = wire.decode(payload)
    except msgspec.DecodeError:
        return False
    return isinstance(record, wire.Event) and record.kind == "finish" and record.stream == ""
