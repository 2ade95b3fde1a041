"""Identifies runs, attempts, ranks and this process. Loads no torch."""

from __future__ import annotations

from ampmon.identity.attempt import LEFT_OUT, new_attempt, owner
from ampmon.identity.ids import launched_run_id, rank_of_process, shared_run_id, uuid7


__all__ = [
    "LEFT_OUT",
    "launched_run_id",
    "new_attempt",
    "owner",
    "rank_of_process",
    "shared_run_id",
    "uuid7",
]
