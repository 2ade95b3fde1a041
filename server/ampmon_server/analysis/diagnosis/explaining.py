"""Removes findings that are symptoms of others, because they would only repeat their causes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ampmon.wire import Finding
from ampmon_server.model.thresholds import worse


SKIPPED = "skipped"
"""Evidence key: how many skips a finding is about."""

_SKIPPING = frozenset(
    {"consecutive_skips", "skip_rate", "culprit_layer", "sawtooth", "calibration", "scale_floor"}
)
_OVERFLOW = frozenset({"consecutive_skips", "skip_rate", "low_scale"})
_FALLING = _SKIPPING | {"low_scale", "collapse_forecast", "diverged", "zero_gradients"}
_BEFORE_OR_AFTER = frozenset({"nan_not_overflow", "forward_overflow"})
"""Rules of overflows and NaN that make a loss diverge or result from that. Whichever began first is the cause."""
_DAMAGE = frozenset({"forward_overflow", "diverged", "low_scale"})
"""Rules of the damage by outliers that were skipped until a smaller scale let one through."""
_OF_OUTLIERS = frozenset({"consecutive_skips", "skip_rate"})
_UNDERFLOW = frozenset({"subnormal", "subnormal_parameter", "flushed"})

EXPLAINS: Mapping[str, frozenset[str]] = {
    "poisoned_state": _FALLING | {"nan_not_overflow", "forward_overflow", "backward_overflow"},
    "uncleared_gradients": _FALLING | {"nan_not_overflow", "forward_overflow", "backward_overflow"},
    "fused_sgd": _FALLING | {"nan_not_overflow", "forward_overflow"},
    # A rank whose shard overflowed skips alone.
    "sharded_fused": frozenset({"ranks_disagree", "scale_floor"}),
    # Gradients that overflow after the check in `unscale_` are written into the weights.
    # torch raises at a second `unscale_`.
    "unscale_in_accumulation": _FALLING
    | {"poisoned_state", "dead_scale", "nan_not_overflow", "crashed"},
    "cleared_before_step": frozenset({"zero_gradients"}),
    # Clipping by an infinite norm turns infinities into NaN.
    "clip_before_unscale": frozenset({"nan_not_overflow"}),
    # torch raises at each of these five, which ends the script.
    "fp16_parameters": frozenset({"crashed"}),
    "no_step": frozenset({"crashed"}),
    "no_update": frozenset({"crashed"}),
    "no_gradients": frozenset({"crashed"}),
    "used_before_scale": frozenset({"crashed"}),
    "dead_scale": _FALLING | _UNDERFLOW | {"poisoned_state"},
    "forward_overflow": _FALLING | {"nan_not_overflow", "dead_scale"},
    "nan_not_overflow": _FALLING | {"dead_scale"},
    "diverged": _BEFORE_OR_AFTER,
    "ranks_disagree": frozenset({"telemetry_gaps"}),
    "forgotten_state": frozenset({"skip_rate", "consecutive_skips", "calibration"}),
    "scale_floor": frozenset({"skip_rate", "consecutive_skips", "culprit_layer"}),
    "sawtooth": frozenset({"skip_rate", "culprit_layer", "backward_overflow"}),
    "backward_overflow": _OVERFLOW | {"culprit_layer"},
    "culprit_layer": _OVERFLOW,
    "collapse_forecast": frozenset(
        {"low_scale", "consecutive_skips", "skip_rate", "zero_gradients"}
    ),
    "consecutive_skips": frozenset({"skip_rate", *_DAMAGE}),
    "low_scale": frozenset({"zero_gradients"}),
    "skip_rate": frozenset({"low_scale"}),
    "slow_growth": _UNDERFLOW | {"stuck_scale"},
    "stuck_scale": _UNDERFLOW,
    "subnormal_parameter": frozenset({"subnormal"}),
    "scaler_made_anew": frozenset({"calibration"}),
}
"""The rules whose findings each rule explains, unless they are of different scalers."""

_OF_ALL_SCALERS = frozenset({"scaler_made_anew"})
"""Rules that explain findings of other scalers too."""


CONSEQUENCES = frozenset({"dead_scale", "collapse_forecast", "diverged"})
"""Rules whose findings are more than symptoms. The explanation of their cause begins with their titles."""

BEGAN = "began"
"""Evidence key of a dead scale: where most of the skips that killed it began, such as "forward", or `NAN`."""
NAN = "nan"
"""Skips that no scale prevents, in the backward pass or of unknown origin."""
_KILLING: Mapping[str, Sequence[str]] = {
    "forward_overflow": ("forward",),
    "nan_not_overflow": ("input", "loss", NAN),
}
"""Causes of a dead scale, and where the skips of each begin."""

OUTLIER = "loss_ratio"
"""Evidence key of skips: the loss divided by the usual loss, if it was an outlier at most of them."""
SOON = 10
"""Updates within which the forward pass overflows once a smaller scale has let an outlier damage the weights."""

_EARLIEST: Mapping[tuple[str, str], int] = {
    ("dead_scale", "poisoned_state"): 0,
    **{("poisoned_state", rule): -SOON for rule in _BEFORE_OR_AFTER},
}
"""By cause and symptom: so many updates after its cause, at the earliest, a symptom begins. Weights that are not finite
are found a few updates after they cause the first NaN. Older overflows destroyed them, by a dead scale.
"""

ONLY_AS_CAUSES = frozenset({"backward_overflow", "culprit_layer"})
"""Rules whose findings count only if they explain another: some layer is always the first to overflow."""


def explained(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings without symptoms. A cause takes the worst severity of its symptoms, and stops if one does.

    ``findings`` must be in order, causes first.
    """
    left = dict(enumerate(findings))
    for place, cause in enumerate(findings):
        if place in left:
            places = [other for other, each in left.items() if _is_symptom(each, cause)]
            symptoms = [left.pop(other) for other in places]
            left[place] = _burdened(cause, symptoms)
            if cause.rule in ONLY_AS_CAUSES and not symptoms:
                del left[place]
    return [left[place] for place in sorted(left)]


def _is_symptom(finding: Finding, cause: Finding) -> bool:
    scalers = set() if cause.rule in _OF_ALL_SCALERS else {cause.scaler, finding.scaler} - {""}
    if len(scalers) > 1 or finding.rule not in EXPLAINS.get(cause.rule, ()):
        return False
    if finding.rule == "crashed" and finding.last_step is not None:
        # The run trained on, so an earlier problem did not end it.
        return cause.first_step is not None and cause.first_step > finding.last_step
    if finding.rule == "dead_scale" and cause.rule in _KILLING:
        return finding.evidence.get(BEGAN) in _KILLING[cause.rule]
    if finding.rule in _DAMAGE and cause.rule in _OF_OUTLIERS:
        return cause.evidence.get(OUTLIER) is not None and _comes_of(finding, cause)
    later = (finding.first_step or 0) - (cause.first_step or 0)
    if cause.rule == "diverged" or (finding.rule == "diverged" and cause.rule in _BEFORE_OR_AFTER):
        return later > 0 or (later == 0 and finding.rule == "diverged")
    in_order = later >= _EARLIEST.get((cause.rule, finding.rule), -math.inf)
    return in_order and _meet(finding, cause) and _accounts(cause, finding)


def _comes_of(finding: Finding, skips: Finding) -> bool:
    """Whether a finding begins with these skips or soon after. A forward overflow must begin after them."""
    first, last = skips.first_step or 0, skips.last_step or 0
    begin = last + 1 if finding.rule == "forward_overflow" else first
    return begin <= (finding.first_step or 0) <= last + SOON


def _meet(one: Finding, other: Finding) -> bool:
    """Whether two findings overlap in time. They do if either lacks a step."""
    ends = one.first_step, one.last_step, other.first_step, other.last_step
    if any(end is None for end in ends):
        return True
    first, last, from_, to = (end for end in ends if end is not None)
    return first <= to and from_ <= last


def _accounts(cause: Finding, symptom: Finding) -> bool:
    """Whether a cause has at least half of the symptom's skips. It does if either has no count."""
    own, all_of = cause.evidence.get(SKIPPED), symptom.evidence.get(SKIPPED)
    if not isinstance(own, int) or not isinstance(all_of, int):
        return True
    return 2 * own >= all_of


def _burdened(cause: Finding, symptoms: Iterable[Finding]) -> Finding:
    severity, stop, said, fixes = cause.severity, cause.stop, [], [cause.fix]
    for symptom in symptoms:
        severity, stop = worse(severity, symptom.severity), stop or symptom.stop
        if symptom.rule in CONSEQUENCES:
            said.append(f"{symptom.title}.")
        if symptom.rule == "dead_scale":  # fixing the cause does not revive the scale
            checkpoint, _, scaler = symptom.fix.partition("\n")
            if "scaler = " in cause.fix:  # a script makes its scaler once
                fixes.insert(0, checkpoint)
            else:
                fixes.append(scaler if "checkpoint" in cause.fix else symptom.fix)
    return msgspec.structs.replace(
        cause,
        severity=severity,
        stop=stop,
        explanation=" ".join(filter(None, (*said, cause.explanation))),
        fix="\n".join(filter(None, fixes)),
    )
