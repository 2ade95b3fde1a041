"""Notifies listeners that a run has advanced, without saying what changed.

A notice may be late or merged with the next one. Treat it only as a reason to read the store.
"""

from __future__ import annotations

from ampmon_server.background.bus.follower import BusFollower
from ampmon_server.background.bus.local import (
    INTERVAL_S,
    QUIET_S,
    RUNS_KEPT_MAX,
    Advance,
    Bus,
    BusListener,
)


__all__ = ["INTERVAL_S", "QUIET_S", "RUNS_KEPT_MAX", "Advance", "Bus", "BusFollower", "BusListener"]
