"""Finds skipped updates spread over a run, by their share of the newest updates, without calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ampmon.numerics import sampling_error
from ampmon.wire import Finding, Severity
from ampmon_server.analysis.diagnosis.explaining import OUTLIER
from ampmon_server.analysis.diagnosis.outliers import HEAVY as HEAVY_LOSS
from ampmon_server.analysis.diagnosis.outliers import Common, common_of, outlier_skips
from ampmon_server.analysis.diagnosis.rules.parts import CLIP, LIMIT, LOOK, each_scaler
from ampmon_server.analysis.diagnosis.updates import calibrated_from, follows_growth
from ampmon_server.model.aggregates.merging import Cells
from ampmon_server.model.case import ScalerCase
from ampmon_server.model.scale_policy import ScalePolicy
from ampmon_server.model.thresholds import Thresholds
from ampmon_server.model.words import count, in_code, magnitude_of, percent


EXPLANATION = (
    "A skipped step leaves the weights as they were: the batch was computed for nothing. Torch tries a larger scale "
    "after every growth_interval steps and loses a step if that is too large. "
)
GROWN = (
    "{grown} skips came soon after the scale had grown: the scaler tries larger scales too often."
)
STEADY = (
    "Before {steady} skips the scale had not grown, so a larger growth_interval does not prevent them: single batches "
    "overflow at a scale that fits the others (newest: steps {steps}). Clipping gradients does not prevent them: they "
    "overflow before they can be clipped. Once the scale is small enough, such a batch reaches the weights."
)
PERIOD = " They are {period} steps apart, or a multiple: check what the data loader does every {period} batches."
HEAVY = " At {heavy} of them the logged {name} was {ratio} times its usual value."
ORDINARY = " The logged {name} was normal at each of them."
EVERYWHERE = " Every parameter overflowed in {everywhere} of {known}: no single layer is the cause."
FIRST = " {first} was the first to overflow in {times} of {known}."
CALM = " The gradient norm of the steps around them was normal: the training itself was stable."
UNSTEADY = " The gradient norm of the steps around them was {ratio} times the median: check what changed there."
RISEN = " The logged {name} is {ratio} times its first value: if it should fall, the learning rate is too large."
LESS_OFTEN = (
    "scaler = ampmon.GradScaler(growth_interval={growth_interval})  # try a larger scale less often"
)
SMALLER = (
    "# Inspect these batches. If they are correct, use a scale that fits them, and clip their gradients:\n"
    "scaler = ampmon.GradScaler(init_scale={scale}, growth_interval={growth_interval})\n"
    f"{CLIP}"
)
SLOWER = f"# If the loss should fall, use a smaller learning rate, and clip gradients:\n{CLIP}"
LOG = 'ampmon.log({"loss": loss})  # to compare the loss of the skipped steps with the others'
SEARCH = 4
"""At most this many skips, each at a new lowest scale, continue the search: early gradients may grow sixteenfold."""
LEAST = 3
"""Fewer skips than this say nothing about the rate of a window that is not full."""
GROWTH_INTERVAL = 2000
"""Torch's default, whose tries alone are no finding."""
NEVER = 10**9
NEWEST = 5
RAISED = 2.0
"""A gradient norm around skips of this many times the median means that the training is not calm."""


@dataclass(frozen=True, slots=True)
class _Skips:
    """The skips in a scaler's ``window``: those caused by a growth (``grown``), and those at a ``steady`` scale."""

    scaler: ScalerCase
    window: Cells
    grown: Cells
    steady: Cells
    thresholds: Thresholds

    @classmethod
    def of(cls, scaler: ScalerCase, thresholds: Thresholds) -> _Skips:
        calibrated = np.flatnonzero(scaler.recent["first"] >= calibrated_from(scaler))
        newest = calibrated[-thresholds.skip_window :]
        window = scaler.recent[newest]
        skipped = window["skipped"] > 0
        outlier = outlier_skips(scaler.recent, scaler.logged)
        grown = follows_growth(scaler.recent, scaler.policy, outlier)[newest]
        return cls(scaler, window, window[skipped & grown], window[skipped & ~grown], thresholds)

    def severity(self, skips: Cells) -> Severity | None:
        """The severity of some of the skips, if they were alone."""
        return severity_of(skips, self.window, self.thresholds)

    def is_search(self, common: Common | None) -> bool:
        """Whether the scaler still searches for a scale that fits: a few skips that have nothing else in common."""
        scales = self.scaler.recent["scale_first"][self.scaler.recent["skipped"] > 0]
        is_falling = bool((scales[1:] < scales[:-1]).all())
        if common is None or not is_falling or _count(self.window) > SEARCH:
            return False
        return not common.is_loss_heavy and common.period is None


def severity_of(skips: Cells, window: Cells, thresholds: Thresholds) -> Severity | None:
    """Return the severity of these skips of a window. A partial window counts with the low end of their share."""
    skipped, updates = _count(skips), int(window["n"].sum())
    full = updates >= thresholds.skip_window
    if skipped < LEAST - full:
        return None
    return thresholds.skip_rate.severity(at_least(skipped, updates, thresholds.skip_window))


def _count(skips: Cells) -> int:
    return int(skips["skipped"].sum())


@each_scaler
def examine(scaler: ScalerCase, thresholds: Thresholds) -> Finding | None:
    """The severity is that of all skips. The fix is for those that would be a finding alone."""
    skips = _Skips.of(scaler, thresholds)
    severity = skips.severity(skips.window)
    if severity is None:
        return None
    skipped, updates = _count(skips.window), int(skips.window["n"].sum())
    in_common: Mapping[str, float | None] = {}
    steps = skips.steady["skip_first"]
    common = common_of(scaler, steps) if len(steps) else None
    if common is None or skips.severity(skips.steady) is None:
        where, why, fix = _after_growth(skips)
    else:
        where, why, fix = _at_steady_scale(skips, common)
        in_common = {
            "period": common.period,
            OUTLIER: common.loss.ratio if common.loss and common.is_loss_heavy else None,
            "norm_ratio": common.norm_ratio,
        }
    return Finding(
        rule="skip_rate",
        # Gradients grow while a training begins, so a high first scale falls several times.
        severity="notice" if skips.is_search(common) else severity,
        title=f"{count(skipped)} of the last {count(updates)} steps were skipped "
        f"({percent(skipped / updates)}), {where}",
        explanation=EXPLANATION + why,
        fix=fix,
        first_step=int(skips.window["first"][0]),
        last_step=int(skips.window["last"][-1]),
        evidence={
            "skipped": skipped,
            "updates": updates,
            "after_growth": _count(skips.grown),
            **in_common,
        },
        figure="skips",
    )


def _after_growth(skips: _Skips) -> tuple[str, str, str]:
    """The kind of the skips as a part of the title, the explanation and the fix, as `_at_steady_scale` returns them."""
    interval = skips.scaler.policy.growth_interval
    longer = 2 * interval if interval >= GROWTH_INTERVAL else GROWTH_INTERVAL
    grown = _some(skips.grown, skips.window)
    where = f"{grown} soon after the scale had grown"
    fix = begun(LESS_OFTEN.format(growth_interval=longer), skips.window, skips.scaler.policy)
    return where, GROWN.format(grown=grown.capitalize()), fix


def begun(fix: str, window: Cells, policy: ScalePolicy) -> str:
    """Let ``fix`` begin at the scale that fits if the script begins below it: from there, slow growth takes long."""
    since = window[np.argmax(window["skipped"] > 0) :]
    fits = min(float(since["scale_min"].min()), float(since["after_last"][-1]))
    if policy.init_scale >= fits:
        return fix
    return fix.replace("GradScaler(", f"GradScaler(init_scale={in_code(fits)}, ")


def _at_steady_scale(skips: _Skips, common: Common) -> tuple[str, str, str]:
    every = f", every {count(common.period)} steps" if common.period else ""
    newest = ", ".join(count(step) for step in common.steps[-NEWEST:].tolist())
    steady = _some(skips.steady, skips.window)
    why = STEADY.format(steady=steady, steps=newest) + "".join(_words(common))
    if common.loss is not None and common.loss.has_risen and not common.is_loss_heavy:
        why += RISEN.format(name=common.loss.name, ratio=magnitude_of(common.loss.growth))
    where, fix = f"{steady} at a steady scale{every}", _fix(common)
    if skips.severity(skips.grown) is not None and "growth_interval" not in fix:
        others, grown, less_often = _after_growth(skips)
        where, why = f"{others}, {where}", f"{why} {grown}"
        fix = _with_one_scaler(fix, less_often)
    return where, why, fix


def _with_one_scaler(fix: str, change: str) -> str:
    """Both pieces of code. If both make a scaler, it is made once."""
    begins = "scaler = ampmon.GradScaler("
    if begins not in fix:
        return f"{fix}\n{change}"
    arguments = change.removeprefix(begins).partition(")")[0]
    return fix.replace(begins, f"{begins}{arguments}, ")


def _some(skips: Cells, window: Cells) -> str:
    some, every = _count(skips), _count(window)
    if some == every:
        return "both" if every == 2 else f"all {count(every)}"
    return f"{count(some)} of {count(every)}"


def _words(common: Common) -> Iterator[str]:
    """A sentence for each thing that the skipped updates have in common."""
    if common.period:
        yield PERIOD.format(period=count(common.period))
    loss, culprits = common.loss, common.culprits
    if loss is not None and common.is_loss_heavy:
        heavy, ratio = count(loss.heavy), magnitude_of(loss.ratio)
        if loss.surely < loss.heavy:
            heavy = f"{count(loss.surely)} to {heavy}"
        yield HEAVY.format(heavy=heavy, name=loss.name, ratio=ratio)
    elif loss is not None and loss.known and not loss.heavy:
        yield ORDINARY.format(name=loss.name)
    if culprits.everywhere > culprits.times:
        yield EVERYWHERE.format(everywhere=culprits.everywhere, known=culprits.known)
    elif culprits.times > 1:
        yield FIRST.format(first=culprits.first, times=culprits.times, known=culprits.known)
    if common.norm_ratio is not None and (loss is None or not loss.has_risen):
        sentence = CALM if common.norm_ratio < RAISED else UNSTEADY
        yield sentence.format(ratio=magnitude_of(common.norm_ratio))


def _fix(common: Common) -> str:
    """The cure: a limit on outlier losses, a smaller rate, or a smaller scale. Else code that helps find the cause."""
    loss = common.loss
    if loss is not None and common.is_loss_heavy:
        return LIMIT.format(most=HEAVY_LOSS)
    if loss is not None and loss.has_risen:
        return SLOWER
    # Never without clipping: outliers that a smaller scale lets through destroy the weights.
    if common.proven is not None:
        return SMALLER.format(scale=in_code(common.proven), growth_interval=NEVER)
    return LOG if loss is None else LOOK


def at_least(skipped: int, updates: int, window: int) -> float:
    """Return the share of skipped updates. For less than a full window it is the low end of its 95 % interval."""
    share = skipped / updates
    if updates >= window:
        return share
    each = np.array([1 / updates])
    low, _ = sampling_error.interval(np.array([share]), share * (1 - share) * each, each)
    return float(low[0])
