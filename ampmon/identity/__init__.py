"""Who reports: ids of runs and attempts, ranks, and what is known of this process. Knows nothing of torch but its name."""

from __future__ import annotations

from ampmon.identity.attempt import new_attempt
from ampmon.identity.ids import rank_of_process, shared_run_id, uuid7
from ampmon.identity.process import Process, process_alive, this_process
from ampmon.identity.source import git_commit, versions


__all__ = [
    "Process",
    "git_commit",
    "new_attempt",
    "process_alive",
    "rank_of_process",
    "shared_run_id",
    "this_process",
    "uuid7",
    "versions",
]
