"""A run of which nothing is heard any more, though nobody said that it ended."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.case import Case
from ampmon_server.thresholds import Thresholds
from ampmon_server.words import count


EXPLANATION = (
    "Its process neither finished nor was seen to die. It may hang, as in a collective that one rank never enters, "
    "its machine may be gone, or the way to this server is cut; in the last case nothing is lost and the records come "
    "later."
)
FIX = (
    "pip install py-spy && py-spy dump --pid PID  # where does it hang?\n"
    "TORCH_NCCL_DESYNC_DEBUG=1 NCCL_DEBUG=INFO torchrun ..."
)


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """A warning from `silent_s` on, or from `silent_updates` updates where those take longer."""
    if case.status != "silent" or case.last_time is None:
        return
    quiet = (case.now - case.last_time) / 1e6
    if quiet >= max(thresholds.silent_s, thresholds.silent_updates * case.update_us / 1e6):
        yield Finding(
            rule="silent",
            severity="warning",
            title=f"No record for {_duration(quiet)}{_beside(case.update_us / 1e6)}",
            explanation=EXPLANATION,
            fix=FIX,
            evidence={"quiet_s": quiet, "update_s": case.update_us / 1e6},
            figure="scale",
        )


def _beside(update_s: float) -> str:
    return f"; an update took {_duration(update_s)}" if update_s > 0 else ""


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size:
            return f"{count(int(seconds / size))} {unit}"
    return f"{1000 * seconds:.3g} ms"
