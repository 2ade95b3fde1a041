"""The spool: one process's records on local disk, until a server has them. Knows no networks and no record contents."""

from __future__ import annotations

from ampmon.spool.layout import Position, segments, spools
from ampmon.spool.state import Destination
from ampmon.spool.writer import SpoolWriter


__all__ = ["Destination", "Position", "SpoolWriter", "segments", "spools"]
