"""How far a spool is delivered: the file `cursor` in it. Losing it costs a resend, which the server ignores."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ampmon.spool import layout
from ampmon.spool.layout import Position
from ampmon.system import private


_NAME = "cursor"


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Everything before it was acknowledged, or set aside and counted.

    ``corrupt`` counts places where bytes were no frame, ``rejected`` records that the server refused. ``finished`` says
    that the attempt's own last word was among what was delivered.
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
        """The cursor of the spool at ``path``; at its very beginning where there is none that can be read."""
        try:
            return msgspec.json.decode((path / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls(segment=0, offset=0)

    @classmethod
    def bytes_left(cls, path: Path) -> int:
        """How much of the spool at ``path`` lies behind its cursor, in bytes; 0 where it is gone."""
        return layout.bytes_behind(path, cls.read(path).position)

    def write(self, path: Path, *, durable: bool) -> None:
        """Replace the cursor at once; ``durable`` waits for the disk. Raises OSError."""
        private.replace(path / _NAME, msgspec.json.encode(self), durable=durable)
