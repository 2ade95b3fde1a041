"""Adds the measured change of the gradient by fp16 to findings of underflow, if the trainer has measured it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from ampmon.wire import Finding
from ampmon_server.model.case import Case
from ampmon_server.model.names import module_of
from ampmon_server.model.words import count, percent, power_of_two


RULES = frozenset({"subnormal", "subnormal_parameter", "flushed", "slow_growth", "stuck_scale"})
"""Rules whose findings a measurement proves or refutes, because shares of subnormal values are only a sign."""
KIND = "measured"
"""The kind of event that carries a measurement."""
CHANGED = (
    " Measured at step {step}, scale {scale}: fp16 changed the gradient of module {module} by {error}, and the whole "
    "gradient by {whole}."
)
FAILED = " A measurement at step {step} failed: {why}"

_Error: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Measurement(msgspec.Struct):
    """An event's detail: errors relative to the norm of the fp32 gradient, overall and by module, or why it failed."""

    scale: Annotated[float, msgspec.Meta(gt=0, le=2.0**127)]
    error: _Error | None = None
    modules: dict[str, _Error | None] = {}
    failed: str = ""


def measured(finding: Finding, case: Case) -> Finding:
    """Return the finding with its scaler's newest measurement, if any, in words and as evidence."""
    found = (each for each in case.events if each.kind == KIND and each.scaler == finding.scaler)
    event = next(found, None)
    if finding.rule not in RULES or event is None:
        return finding
    try:
        measurement = msgspec.convert(event.detail, _Measurement)
    except msgspec.ValidationError:  # an event may hold anything
        return finding
    errors = {name: error for name, error in measurement.modules.items() if error is not None}
    step = count(event.step or 0)
    if measurement.error is None or not errors:
        words, evidence = FAILED.format(step=step, why=measurement.failed), {}
    else:
        named = [name for each in finding.parameters if (name := module_of(each)) in errors]
        module = named[0] if named else max(errors, key=errors.__getitem__)
        words = CHANGED.format(
            step=step,
            scale=power_of_two(measurement.scale),
            module=module,
            error=percent(errors[module]),
            whole=percent(measurement.error),
        )
        evidence = {"measured_error": errors[module], "measured_error_of_all": measurement.error}
    return msgspec.structs.replace(
        finding, explanation=finding.explanation + words, evidence=finding.evidence | evidence
    )
