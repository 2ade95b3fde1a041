"""The spool: one process's records on local disk, until a server has them. Knows no networks and no record contents."""

from __future__ import annotations

from ampmon.spool.layout import (
    Position,
    attempt_directory,
    attempt_id_of,
    bytes_behind,
    claim,
    claimant_of,
    discard_segments,
    end_of,
    is_mine,
    last_changed,
    last_written,
    remove,
    segments,
    spools,
    spools_in,
    spools_of,
    time_at,
)
from ampmon.spool.reader import Chunk, SpoolEntry, SpoolReader
from ampmon.spool.state import (
    Answers,
    AnswersReader,
    Cursor,
    Destination,
    is_closed,
    requested,
)
from ampmon.spool.writer import SpoolWriter


__all__ = [
    "Answers",
    "AnswersReader",
    "Chunk",
    "Cursor",
    "Destination",
    "Position",
    "SpoolEntry",
    "SpoolReader",
    "SpoolWriter",
    "attempt_directory",
    "attempt_id_of",
    "bytes_behind",
    "claim",
    "claimant_of",
    "discard_segments",
    "end_of",
    "is_closed",
    "is_mine",
    "last_changed",
    "last_written",
    "remove",
    "requested",
    "segments",
    "spools",
    "spools_in",
    "spools_of",
    "time_at",
]
