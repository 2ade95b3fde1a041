"""NaN that is no overflow: no scale is small enough for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ampmon.wire import Finding
from ampmon_server.case import Case, ScalerCase
from ampmon_server.cells.merging import Cells
from ampmon_server.diagnosis.ledger import skipped_updates
from ampmon_server.diagnosis.updates import Streak, streaks, whole_skips
from ampmon_server.thresholds import Thresholds
from ampmon_server.words import plural, steps


EXPLANATION = (
    "A scale that is too large gives inf first. Here the gradients held NaN and no inf, at a scale at which other "
    "batches went through: the NaN comes from the data, from the forward pass (0/0, log of 0, a softmax over nothing) "
    "or from weights that are NaN already. The scaler takes it for an overflow and halves its scale, which cannot "
    "help.{logged}"
)
LOGGED = " The logged {name} was NaN or infinite {times}."
FIX = (
    "assert torch.isfinite(inputs).all(), batch_index  # is it in the data?\n"
    "torch.autograd.set_detect_anomaly(True)  # for one run: names the operation that made it"
)
FEW = 3
CLEAN = 8
"""So many updates must have gone through since the scale last rose: else it may be the new scale that is too large."""


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """A warning; critical where it happens twice soon after one another, or does not end."""
    for scaler in case.scalers:
        found = _without_inf(scaler)
        if found:
            yield _finding(case, scaler, found, thresholds)


def _finding(
    case: Case, scaler: ScalerCase, found: Sequence[Streak], thresholds: Thresholds
) -> Finding:
    skipped = sum(each.updates for each in found)
    longest = max(each.updates for each in found)
    first, last = found[0].first, found[-1].last
    apart = np.diff([each.last for each in found])
    endless = found[-1].ongoing and longest >= (thresholds.consecutive_skips.critical or np.inf)
    often = bool((apart < thresholds.nan_window).any())
    bad = often or longest >= (thresholds.consecutive_skips.warning or np.inf)
    return Finding(
        rule="nan_not_overflow",
        severity="critical" if bad else "warning",
        title=f"{plural(skipped, 'update was', 'updates were')} skipped for NaN without inf ({steps(first, last)}): "
        "no scale helps",
        explanation=EXPLANATION.format(logged=_logged(case)),
        fix=FIX,
        scaler=scaler.name,
        first_step=first,
        last_step=last,
        evidence={"skipped": skipped, "times": len(found), "longest": longest},
        figure="skips",
        stop=endless,
    )


def _without_inf(scaler: ScalerCase) -> list[Streak]:
    """The newest streaks in which every skip that was looked into held NaN alone, and no scale can be blamed.

    None where others like them, `FEW` or more, outnumber them with inf: an overflow leaves nothing but NaN at times.
    """
    known = {each.step: each for each in skipped_updates(scaler) if each.causes}
    cells = scaler.recent
    nan: list[Streak] = []
    inf: list[Streak] = []
    for streak in streaks(cells):
        inside = [known[step] for step in range(streak.first, streak.last + 1) if step in known]
        if not inside or (streak.after >= 1 and not _fitted(cells, streak.first)):
            continue
        if all(each.only_nan for each in inside):
            nan.append(streak)
        elif not _is_try(cells, streak.first):
            inf.append(streak)
    return nan if len(nan) >= len(inf) or len(inf) < FEW else []


def _is_try(cells: Cells, step: int) -> bool:
    """Whether the scale has risen since the skip before."""
    before = int(np.searchsorted(cells["first"], step))
    scale = cells["scale_first"][: before + 1]
    rose = np.flatnonzero(scale[1:] > scale[:-1])
    skipped = np.flatnonzero(cells["skipped"][:before])
    return bool(len(rose) and (not len(skipped) or rose[-1] >= skipped[-1]))


def _fitted(cells: Cells, step: int) -> bool:
    """Whether the scale in force at ``step``, or a larger one, had let updates through before."""
    before = cells[cells["first"] < step]
    scale = cells["scale_first"][: len(before) + 1]
    rose = np.flatnonzero(scale[1:] > scale[:-1])
    if len(rose):
        before = before[rose[-1] + 1 :]
    through = int(before["n"][~whole_skips(before)].sum())
    return through >= (CLEAN if len(rose) else 1)


def _logged(case: Case) -> str:
    """A word on a loss that was logged."""
    for name, cells in case.logged.items():
        lost = int((cells["nan"] + cells["inf"] + cells["minus_inf"]).sum())
        if "loss" in name.lower() and lost:
            return LOGGED.format(name=name, times=plural(lost, "time"))
    return ""
