"""Finds NaN that is no overflow, so that no scale is small enough for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ampmon.wire import Finding
from ampmon_server.analysis.diagnosis.ledger import skipped_updates
from ampmon_server.analysis.diagnosis.outliers import loss_at
from ampmon_server.analysis.diagnosis.rules.parts import LOOK, fitted
from ampmon_server.analysis.diagnosis.underflow import UNUSUAL
from ampmon_server.analysis.diagnosis.updates import Streak, is_alive, streaks, whole_skips
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.aggregates.scalars import not_finite
from ampmon_server.model.case import LOST, Case, ScalerCase
from ampmon_server.model.series import Ints
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, plural, steps


UNKNOWN = (
    "A scale that is too large produces inf first. Here the gradients held NaN but no inf, at a scale that worked for "
    "other batches: the NaN comes from the data, from the forward pass (0/0, log of 0, a softmax over nothing) or "
    "from weights that are NaN already."
)
NOT_FINITE = (
    "The loss was inf or NaN before it was scaled: that comes from the data, from the forward pass (an overflow in "
    "fp16, 0/0, log of 0, a softmax over nothing) or from weights that are NaN already. With model= and activations=1, "
    "the next such step shows in which module it begins."
)
INPUT = (
    "The loss was inf or NaN before it was scaled, and so was the model's input. Check the data, and what is computed "
    "from them before the model."
)
LOSS = (
    "The loss was inf or NaN before it was scaled, although the output of each module was finite: it began in the "
    "loss itself, for example with a logarithm of 0, a division by 0 or a sum too large for fp16."
)
BACKWARD = (
    "The loss was finite, but the gradients held NaN and no inf, at a scale far too small for an overflow: it began in "
    "the backward pass, for example with the square root of 0 or an unused branch of `torch.where`."
)
HALVES = " The scaler treats it as an overflow and halves its scale, which cannot help.{logged}"
LOGGED = " The logged {name} was NaN or infinite {times}."
DATA = "assert torch.isfinite(inputs).all(), batch_index  # which batch is it?"
FP32 = (
    "# Compute the loss in fp32. If it still is not finite, keep log, sqrt and divisions away from 0:\n"
    'with torch.autocast("cuda", enabled=False):\n'
    "    loss = loss_function(outputs.float(), targets)"
)
FEW = 3
CLEAN = 8
"""Updates that must be applied after the scale last rose. Otherwise the new scale may be too large."""


def examine(case: Case, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield a warning, or a critical finding if it happens again soon or lasts long."""
    for scaler in case.scalers:
        if found := _without_inf(case, scaler):
            yield fitted(_finding(scaler, found, thresholds), scaler)


def _finding(scaler: ScalerCase, found: Sequence[Streak], thresholds: Thresholds) -> Finding:
    skipped = sum(each.updates for each in found)
    longest = max(each.updates for each in found)
    first, last = found[0].first, found[-1].last
    apart = np.diff([each.last for each in found])
    endless = found[-1].ongoing and longest >= (thresholds.consecutive_skips.critical or np.inf)
    often = bool((apart < thresholds.nan_window).any())
    what, why, fix = _cause(scaler, found)
    bad = often or longest >= (thresholds.consecutive_skips.warning or np.inf)
    return Finding(
        rule="nan_not_overflow",
        severity="critical" if bad else "warning",
        title=f"{plural(skipped, 'step was', 'steps were')} skipped {what} ({steps(first, last)}): "
        "changing the loss scale won't help",
        explanation=why + HALVES.format(logged=_logged(scaler, last)),
        fix=fix,
        first_step=first,
        last_step=last,
        evidence={"skipped": skipped, "times": len(found), "longest": longest},
        figure="skips",
        stop=endless,
    )


def _cause(scaler: ScalerCase, found: Sequence[Streak]) -> tuple[str, str, str]:
    """The reason for most of the skips, with their number if it is not that of all, its explanation and its fix."""
    inside = [
        each
        for each in skipped_updates(scaler)
        if any(streak.first <= each.step <= streak.last for streak in found)
    ]
    lost = [each for each in inside if each.loss == LOST]
    if 2 * len(lost) > len(inside):
        most = lost
        origins = Counter(each.origin for each in lost if each.origin in _SEEN)
        seen = origins.most_common(1)[0][0] if origins else ""
        what, why, fix = _SEEN.get(
            seen, ("because the loss was not finite", NOT_FINITE, f"{DATA}\n{LOOK}")
        )
    else:
        most = [each for each in inside if each.loss != LOST]
        what, why, fix = "due to NaN", UNKNOWN, f"{DATA}\n{LOOK}"
        if any(each.loss for each in most):
            what, why, fix = "due to NaN from the backward pass", BACKWARD, LOOK
    some = f"for inf or NaN, {count(len(most))} of them " if len(most) < len(inside) else ""
    return some + what, why, fix


_SEEN = {
    "input": ("because the model's input was not finite", INPUT, DATA),
    "loss": ("because the loss was not finite although the outputs were", LOSS, FP32),
}


def _without_inf(case: Case, scaler: ScalerCase) -> list[Streak]:
    """The newest streaks in which the scale caused none of the skips that were inspected.

    Those known only by NaN in the gradients do not count if `FEW` or more similar streaks with inf outnumber them,
    because an overflow sometimes leaves nothing but NaN.
    """
    known = {
        each.step: each for each in skipped_updates(scaler) if each.causes or each.loss == LOST
    }
    cells = scaler.recent
    lost: list[Streak] = []
    nan: list[Streak] = []
    inf: list[Streak] = []
    # The outlier may be on a rank whose loss is not logged.
    ordinary = _ordinary(scaler) if case.ranks == 1 else frozenset()
    for streak in streaks(cells):
        inside = [known[step] for step in range(streak.first, streak.last + 1) if step in known]
        if not inside:
            continue
        last = inside[-1]
        if all(each.loss == LOST for each in inside):
            lost.append(streak)
        # Where the scale has let nothing through, it may be too large: its inf makes NaN too.
        elif (streak.after >= 1 or last.loss) and not _fitted(cells, streak.first):
            continue
        elif all(
            each.causes == {"nan"} and (last.beyond_scale or each.step in ordinary)
            for each in inside
        ):
            nan.append(streak)
        elif not _is_try(cells, streak.first):
            inf.append(streak)
    doubtful = len(inf) > len(nan) and len(inf) >= FEW
    every = lost if doubtful else sorted([*lost, *nan], key=lambda streak: streak.first)
    # Later skips may come from weights that a dead scale destroyed.
    return [streak for streak in every if is_alive(streak.before)] or every


def _ordinary(scaler: ScalerCase) -> frozenset[int]:
    """The steps of skips that left NaN in all gradients at an ordinary loss, if one was far below a scale that fits.

    A loss whose gradient overflows leaves NaN everywhere too. But then it is an outlier, or the scale is too large.
    """
    skips = [
        each
        for each in skipped_updates(scaler)
        if each.loss == "finite" and each.causes == {"nan"} and each.everywhere
    ]
    steps = np.array([each.step for each in skips])
    samples = scaler.samples
    one, other = samples.on_grid, samples.off_grid
    peak = np.maximum(one.amax, other.amax)
    fine = np.flatnonzero((one.inf + one.nan + other.inf + other.nan == 0) & (peak > 0))
    loss = loss_at(scaler, steps) if len(steps) and len(fine) else None
    if loss is None or not loss.known or loss.heavy:
        return frozenset()
    near = fine[np.maximum(np.searchsorted(samples.step[fine], steps) - 1, 0)]
    usual = peak[near] / samples.scale[near] * np.array([each.scale for each in skips])
    far_below = usual * 2**UNUSUAL <= peak[fine].max()
    return frozenset(steps.tolist() if far_below.any() else ())


def _is_try(cells: Cells, step: int) -> bool:
    """Whether the scale has risen since the last skip."""
    before, rose = _before(cells, step)
    skipped = np.flatnonzero(before["skipped"])
    return bool(len(rose) and (not len(skipped) or rose[-1] >= skipped[-1]))


def _fitted(cells: Cells, step: int) -> bool:
    """Whether updates were applied before at the scale in force at ``step``, or at a larger one."""
    before, rose = _before(cells, step)
    if len(rose):
        before = before[rose[-1] + 1 :]
    through = int(before["n"][~whole_skips(before)].sum())
    return through >= (CLEAN if len(rose) else 1)


def _before(cells: Cells, step: int) -> tuple[Cells, Ints]:
    """The updates before ``step``, and the places of those after which the scale rose."""
    before = cells[cells["first"] < step]
    scale = cells["scale_first"][: len(before) + 1]
    return before, np.flatnonzero(scale[1:] > scale[:-1])


def _logged(scaler: ScalerCase, last: int) -> str:
    """A sentence on a logged loss that was not finite up to step ``last``, if there is one."""
    for name, cells in scaler.logged.items():
        lost = int(not_finite(cells)[cells["first"] <= last].sum())
        if "loss" in name.lower() and lost:
            return LOGGED.format(name=name, times=plural(lost, "time"))
    return ""
