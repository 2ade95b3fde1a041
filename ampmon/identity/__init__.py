"""Identifies runs, attempts, ranks and this process. Loads no torch."""

from __future__ import annotations

from ampmon.identity.attempt import LEFT_OUT, git_commit, new_attempt, owner, versions
from ampmon.identity.ids import launched_run_id, rank_of_process, shared_run_id, uuid7
from ampmon.identity.process import (
    ProcessIdentity,
    process_alive,
    this_process,
)


__all__ = [
    "LEFT_OUT",
    "ProcessIdentity",
    "git_commit",
    "launched_run_id",
    "new_attempt",
    "owner",
    "process_alive",
    "rank_of_process",
    "shared_run_id",
    "this_process",
    "uuid7",
    "versions",
]
