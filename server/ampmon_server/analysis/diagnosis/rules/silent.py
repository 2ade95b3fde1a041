"""Finds a run that sends no more records although it did not report its end."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count


EXPLANATION = (
    "The process has not finished, and no crash was recorded. It may hang, for example in a collective that one rank "
    "never enters; its machine may be down; or it may have lost the connection to this server. In the last case "
    "nothing is lost, and the records arrive later."
)
FIX = (
    "pip install py-spy && py-spy dump --pid PID  # where does it hang?\n"
    "TORCH_NCCL_DESYNC_DEBUG=1 NCCL_DEBUG=INFO torchrun ..."
)


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a warning after `silent_s`, or after the duration of `silent_updates` updates if that is longer."""
    left, quiet = left_s(case, thresholds), _quiet_s(case)
    if left is not None and left <= 0:
        (rank, step), update_s = _first(case), case.update_us / 1e6
        took = f"; a step took {_duration(update_s)}" if update_s > 0 else ""
        last = f"; rank {rank} was the first to stop, after step {count(step)}"
        yield Finding(
            rule="silent",
            severity="warning",
            title=f"No record for {_duration(quiet)}{took}{'' if rank is None else last}",
            explanation=EXPLANATION,
            fix=FIX,
            evidence={"quiet_s": quiet, "update_s": update_s, "rank": rank},
            figure="scale",
        )


def left_s(case: Case, thresholds: Thresholds) -> float | None:
    """Return the seconds until a silent run becomes a warning. None if the run is not silent."""
    if case.status != "silent" or case.last_time is None:
        return None
    long = max(thresholds.silent_s, thresholds.silent_updates * case.update_us / 1e6)
    return long - _quiet_s(case)


def _quiet_s(case: Case) -> float:
    return (case.now - (case.last_time or 0)) / 1e6


def _first(case: Case) -> tuple[int | None, int]:
    """The rank that stopped first, and its last step. None if all stopped at the same step, or there is one rank."""
    stopped = []
    for scaler in case.scalers:
        lasts = [
            (int(cells["last"][-1]), rank) for rank, cells in scaler.ranks.items() if len(cells)
        ]
        if len({step for step, _ in lasts}) > 1:
            stopped.append(min(lasts))
    step, rank = min(stopped, default=(-1, None))
    return rank, step


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= max(2 * size, 10):
            return f"{count(int(seconds / size))} {unit}"
    return f"{seconds:.2g} s" if seconds >= 0.9995 else f"{1000 * seconds:.3g} ms"
