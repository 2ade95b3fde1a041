"""The spool: one process's records on local disk, until a server has them. Knows no networks and no record contents."""

from __future__ import annotations

from ampmon.spool.layout import (
    Position,
    attempt_directory,
    bytes_behind,
    claim,
    claimant_of,
    segments,
    spools,
)
from ampmon.spool.reader import Chunk, SpoolReader
from ampmon.spool.state import Answers, Cursor, Destination, findings, requested
from ampmon.spool.writer import SpoolWriter


__all__ = [
    "Answers",
    "Chunk",
    "Cursor",
    "Destination",
    "Position",
    "SpoolReader",
    "SpoolWriter",
    "attempt_directory",
    "bytes_behind",
    "claim",
    "claimant_of",
    "findings",
    "requested",
    "segments",
    "spools",
]
