"""News of runs: whoever listens learns that a run has moved on, never what is in it.

A notice may be late or merged with the next, and is only ever a reason to ask the store.
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
