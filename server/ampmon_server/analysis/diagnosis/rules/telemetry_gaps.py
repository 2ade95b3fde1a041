"""Finds missing records, which the charts and other findings do not cover."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import plural


EXPLANATION = (
    "Training was not affected, but skips among the lost records are not counted, and charts have gaps there. Records "
    "are lost if the disk of the data directory is full, slow or missing, if a job is killed while it has records in "
    "memory, or if two processes write as the same rank. If the server's database was restored from a copy or replaced,"
    " earlier records are missing, and there is nothing to change."
)
FIX = "export AMPMON_DIR=/local/disk/ampmon  # a local disk with free space, not a network file system"
RIVALS_FIX = "unset AMPMON_RUN_ID  # or give each job its own"


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a warning from the first missing record on, or if several processes write as the same rank."""
    troubles = {
        "lost": plural(case.lost, "record was lost", "records were lost"),
        "dropped": plural(case.dropped, "record was dropped", "records were dropped"),
        "rivals": plural(
            case.rivals,
            "process writes beside a later start of its rank",
            "processes write beside later starts",
        ),
    }
    counts = {name: getattr(case, name) for name in troubles}
    there = [words for name, words in troubles.items() if counts[name]]
    if there:
        yield Finding(
            rule="telemetry_gaps",
            severity="warning",
            title=", and ".join(there),
            explanation=EXPLANATION,
            fix=FIX if case.lost or case.dropped else RIVALS_FIX,
            evidence=counts,
            figure="scale",
        )
