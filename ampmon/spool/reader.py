"""Reads a spool in the sender: records in order from the cursor on, and the headers they build on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ampmon.errors import SpoolError
from ampmon.spool import frame, layout
from ampmon.spool.layout import Position


_READ_BYTES = 2**20
_MARGIN_BYTES = 2**16  # for the heads of frames


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """A record as written, and the position just after it. ``corrupt`` counts damaged places just before it."""

    payload: bytes
    end: Position
    corrupt: int = 0


@dataclass(slots=True)
class Chunk:
    """Consecutive records. ``corrupt`` counts places after the last of them where bytes were no frame."""

    end: Position
    entries: list[SpoolEntry] = field(default_factory=list)
    size: int = 0
    corrupt: int = 0


class SpoolReader:
    """Reads the spool at ``path`` while another process appends to it. Keeps no file open.

    ``position`` is where the next `read` begins. It may be set back to the end of an entry or a chunk.
    """

    def __init__(self, path: Path, position: Position) -> None:
        attempt_id = layout.attempt_id_of(path)
        if attempt_id is None:
            raise SpoolError(f"{path} is not a spool: its name is not an attempt's id")
        self.path = path
        self._root = os.fspath(path)
        self._attempt_id = attempt_id
        self.position = position

    def read(self, *, bytes_max: int, records_max: int, over: bool) -> Chunk:
        """Return the next records, of one segment at most, and move past them.

        A record longer than ``bytes_max`` comes alone. ``over`` says that nobody appends any more. Bytes at the end
        that are no frame are then damage, not a frame that is still being written. Raises OSError and NewerRecords.
        """
        # Looked for before reading: once the next segment exists, nothing is added to this one.
        following = self._following(over)
        complete = over or following is not None
        chunk = self._read_segment(bytes_max, records_max, complete)
        self.position = chunk.end
        if following is not None and self._unread() <= 0:
            chunk.end = self.position = Position(following, 0)
        return chunk

    def _following(self, over: bool) -> int | None:
        number = self.position.segment
        if self._size(number + 1) is not None:
            return number + 1
        # A missing segment is skipped only once nobody appends: until then, this runs too often to list the folder.
        if self._size(number) is not None and not over:
            return None
        return next((n for n in layout.segments(self.path) if n > number), None)

    def _unread(self) -> int:
        return (self._size(self.position.segment) or 0) - self.position.offset

    def _size(self, number: int) -> int | None:
        # A string, not a Path: an idle sender does this 50 times a second.
        try:
            return os.stat(f"{self._root}{os.sep}{layout.segment_name(number)}").st_size
        except FileNotFoundError:
            return None

    def _read_segment(self, bytes_max: int, records_max: int, complete: bool) -> Chunk:
        chunk = Chunk(end=self.position)
        if self._unread() <= 0:
            return chunk
        number = self.position.segment
        at_once = min(_READ_BYTES, bytes_max + _MARGIN_BYTES)
        start = self.position.offset
        for piece in self._scan(number, start, complete=complete, at_once=at_once):
            if isinstance(piece, frame.Damage):
                chunk.corrupt += 1
            elif piece.kind == frame.HEADER:
                self.headers[piece.key] = piece.payload
            elif chunk.entries and chunk.size + len(piece.payload) > bytes_max:
                break
            else:
                chunk.entries.append(
                    SpoolEntry(piece.payload, Position(number, piece.end), chunk.corrupt)
                )
                chunk.size += len(piece.payload)
                chunk.corrupt = 0
            chunk.end = Position(number, piece.end)
            if len(chunk.entries) >= records_max:
                break
        return chunk

    def _scan(
        self, number: int, start: int, *, complete: bool, at_once: int = _READ_BYTES
    ) -> Iterator[frame.Frame | frame.Damage]:
        salt = frame.salt_of(self._attempt_id, number)
        limit = at_once
        with layout.segment_path(self.path, number).open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            while start < size:
                file.seek(start)
                buffer = file.read(limit)
                last = start + len(buffer) >= size
                before = start
                for piece in frame.scan(
                    buffer, salt=salt, offset=start, complete=complete and last
                ):
                    yield piece
                    start = piece.end
                if last or not buffer:
                    return
                limit = at_once if start > before else limit * 2  # a frame is longer than that

    # Read when first needed: records of a newer ampmon then fail where the status shows it.
    @cached_property
    def headers(self) -> dict[str, bytes]:
        """The newest payload of each key up to the position read. The first access raises as `read` does."""
        headers: dict[str, bytes] = {}
        position = self.position
        if position.offset and layout.segment_path(self.path, position.segment).exists():
            for piece in self._scan(position.segment, 0, complete=False):
                if piece.end > position.offset:
                    break
                if isinstance(piece, frame.Frame) and piece.kind == frame.HEADER:
                    headers[piece.key] = piece.payload
        return headers
