"""Decides how much of a record to keep when disk or memory is nearly full.

Samples go first, because an update without them still says what matters. Skips and events are kept longest.
"""

from __future__ import annotations

from ampmon import wire


SCARCE = 0.75
"""From this share of the quota on, one sample in `ONE_IN` is kept."""
FULL = 1.0
"""From this share on, only rare records are kept, without samples."""
LIMIT = 2.0
"""From this share on, nothing is kept, so the disk use has a limit."""
ONE_IN = 16

_COMMON = {"steady", "grow", "grow_capped"}


def is_rare(record: wire.Record) -> bool:
    """Whether the record must not be lost: a skip, a scale set by hand, a dead scale, or an event."""
    if isinstance(record, wire.Update):
        return record.event not in _COMMON
    return isinstance(record, wire.Event)


class SpoolQuota:
    """Thins records by how full the spool is. ``thinned`` counts those kept without their samples."""

    def __init__(self) -> None:
        self.thinned = 0
        self._samples = 0

    def share(self, record: wire.Record, fullness: float) -> wire.Record | None:
        """The record to keep when the share ``fullness`` of the room is used: whole, without samples, or None."""
        if fullness >= LIMIT or (fullness >= FULL and not is_rare(record)):
            return None
        if fullness < SCARCE or (bare := wire.without_samples(record)) is None:
            return record
        self._samples += 1
        if fullness < FULL and self._samples % ONE_IN == 1:
            return record
        self.thinned += 1
        return bare
