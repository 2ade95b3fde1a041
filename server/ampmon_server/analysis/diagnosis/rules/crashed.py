"""Finds a run whose process died."""

from __future__ import annotations

from collections.abc import Iterator

from ampmon.wire import Finding
from ampmon_server.model.case import Case
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count


EXPLANATION = (
    "The process exited unexpectedly. {how} Everything up to the last step shown is stored. Resume from a "
    "checkpoint, if there is one, with the scaler's state."
)
RAISED = "It raised {type}: see its own output for the {what}."
KILLED = (
    "No exception was recorded: the process was killed, for example by the scheduler or for lack of memory, the "
    "machine went down, or a full disk had no room to record the end."
)
INTERRUPTED = frozenset({"KeyboardInterrupt"})
FIX = "scaler.load_state_dict(checkpoint['scaler'])  # with the model's and the optimizer's"


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a critical finding, or a notice if a user interrupted the run."""
    if case.status != "crashed":
        return
    # Other ranks may fail because of the first.
    first = next(case.of_newest_start("exception"), None)
    raised = "" if first is None else str(first.detail.get("type", ""))
    last = max(
        (int(each.recent["last"][-1]) for each in case.scalers if len(each.recent)), default=None
    )
    after = f" after step {count(last)}" if last is not None else ""
    why = f": {raised}" if raised else ": no reason recorded"
    what = "reason" if raised.startswith("SystemExit") else "traceback"
    yield Finding(
        rule="crashed",
        severity="notice" if raised in INTERRUPTED else "critical",
        title=f"The process died{after}{why}",
        explanation=EXPLANATION.format(
            how=RAISED.format(type=raised, what=what) if raised else KILLED
        ),
        fix=FIX if last is not None else "",
        last_step=last,
        evidence={"exception": raised or None, "last_step": last},
        figure="scale",
    )
