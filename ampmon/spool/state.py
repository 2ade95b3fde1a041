"""The cursor of a spool: the file `cursor` in it. Losing it costs a resend, which the server ignores."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ampmon.spool import layout
from ampmon.spool.layout import Position
from ampmon.system import private


NAME = "cursor"


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a spool is delivered: everything before is acknowledged, or set aside and counted.

    ``corrupt`` counts places where bytes were no frame, ``rejected`` counts records that the server refused.
    ``finished`` says that the attempt's own finish event was delivered.
    """

    segment: int
    offset: int
    corrupt: int = 0
    rejected: int = 0
    finished: bool = False

    @property
    def position(self) -> Position:
        return Position(self.segment, self.offset)

    @classmethod
    def read(cls, path: Path) -> Cursor:
        """Return the cursor of the spool at ``path``, or one at its beginning if none can be read."""
        try:
            return msgspec.json.decode((path / NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls(segment=0, offset=0)

    @classmethod
    def bytes_left(cls, path: Path) -> int:
        """Bytes of the spool at ``path`` after its cursor; 0 if the spool is gone."""
        return layout.bytes_behind(path, cls.read(path).position)

    def write(self, path: Path, *, durable: bool) -> None:
        """Replace the cursor atomically. With ``durable``, wait for the disk. Raises OSError."""
        private.replace(path / NAME, msgspec.json.encode(self), durable=durable)
