"""What of a record is kept where there is little room left for it, on the disk or in memory.

Skips and events are kept to the last; samples go first, for an update says what matters without them.
"""

from __future__ import annotations

from ampmon import wire


SCARCE = 0.75
"""From this share of the quota on, one sample in `ONE_IN` is kept."""
FULL = 1.0
"""From here on no sample is, and of the records only those that are rare."""
LIMIT = 2.0
"""Here even those end: no disk is filled without end."""
ONE_IN = 16

_COMMON = {"steady", "grow", "grow_capped"}


def is_rare(record: wire.Record) -> bool:
    """Whether the record holds what must not be lost: a skip, a hand on the scale, its death, an event."""
    if isinstance(record, wire.Update):
        return record.event not in _COMMON
    return isinstance(record, wire.Event)


class SpoolQuota:
    """Rations records by how full it is. ``thinned`` counts those that were left without their samples."""

    def __init__(self) -> None:
        self.thinned = 0
        self._samples = 0

    def share(self, record: wire.Record, fullness: float) -> wire.Record | None:
        """The record as it is kept where ``fullness`` of the room is used: whole, without samples, or not at all."""
        if fullness >= LIMIT or (fullness >= FULL and not is_rare(record)):
            return None
        if fullness < SCARCE or (bare := wire.without_samples(record)) is None:
            return record
        self._samples += 1
        if fullness < FULL and self._samples % ONE_IN == 1:
            return record
        self.thinned += 1
        return bare
