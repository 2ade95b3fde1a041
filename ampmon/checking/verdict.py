"""Passes as a result: the verdict in words, the fix as code, and the modules, the worst first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampmon.checking.passes import Bench, Pass
from ampmon.checking.result import ModuleCheck, Preflight, percent, power


GRADIENT_ERROR = 0.01
"""A gradient that fp16 changes by a larger share of its norm in fp32 is named."""
BF16 = 'with torch.autocast("{device}", dtype=torch.bfloat16):  # and no GradScaler\n    loss = ...'
FP32 = (
    'with torch.autocast("{device}", enabled=False):  # in forward(), around {modules}\n'
    "    out = layer(x.float())"
)
SCALE = 'scaler = ampmon.GradScaler("{device}", init_scale=2.0**{exponent:g})'
NO_CURE = "No scale cures it, nor do a few modules in fp32."
BEGAN = {
    "forward": " in the forward pass, first in {module}",
    "backward": " in the backward pass at a loss scale of {scale}, first in {module}",
    "loss": " in loss_fn, after the last module",
    "input": " in the model's input",
}


def harmed(found: Pass, bf16: Pass) -> tuple[int, ...]:
    """Modules whose gradient the range of fp16 harms: it rounds 8 times as finely as bf16, and yet is further off."""
    return found.over(GRADIENT_ERROR, bf16.errors)


def not_finite(bench: Bench, truth: Pass, scale: float) -> Preflight:
    """The result where fp32 has inf or NaN too."""
    what = "gradient" if math.isfinite(truth.loss) else "loss"
    return Preflight(
        verdict=f"The {what} is not finite in fp32 either: fp16 is not the cause, the data or the model is. "
        f"It began{_began(bench, truth)}.",
        problem=True,
        device=bench.device,
        init_scale=scale,
    )


def compared(bench: Bench, first: Pass, bf16: Pass, cured: Pass | None) -> Preflight:
    """The result of the first fp16 pass, of one in bf16, and of one in fp16 without a problem, if there was any."""
    bf16_helps = cured is None and bf16.finite and not first.error <= bf16.error
    words, fix = [_problem(bench, first, cured)], ""
    if bf16_helps:
        words.append(f"{NO_CURE} bf16 does better.")
        fix = BF16.format(device=bench.device)
    elif cured is None:
        words.append(f"{NO_CURE} Nor does bf16.")
    elif cured is not first:
        words.append(_cure(bench, first, cured))
        fix = "\n".join(_code(bench, first, cured))
    return Preflight(
        verdict=" ".join(words),
        problem=cured is None or bool(cured.kept) or cured.scale > first.scale,
        fix=fix,
        device=bench.device,
        init_scale=first.scale,
        scale=cured.scale if cured else None,
        error=_known(first.error),
        fixed_error=_known(cured.error) if cured and fix else None,
        bf16_error=_known(bf16.error),
        modules=tuple(sorted(_modules(bench, first, bf16, cured), key=_goodness)),
    )


def _problem(bench: Bench, first: Pass, cured: Pass | None) -> str:
    at, limit = f"at a loss scale of {power(first.scale)}", percent(GRADIENT_ERROR)
    over = first.over(GRADIENT_ERROR)
    if first is cured and not over:
        return f"Nothing to change: {at}, fp16 overflows nowhere and changes no module's gradient by more than {limit}."
    if not first.finite:
        return f"fp16 overflows{_began(bench, first)}."
    worst = bench.label(max(over, key=lambda place: first.errors[place]))
    share = f"the gradient of {len(over)} of {len(first.errors)} modules by more than {limit}, most in {worst}"
    if first is cured:
        return f"Nothing to change: {at}, fp16 overflows nowhere. It changes {share}: by rounding, more so in bf16."
    return f"fp16 changes {share}, {at}."


def _began(bench: Bench, found: Pass) -> str:
    origin, place = found.began()
    module = "" if place is None else bench.label(place)
    return BEGAN.get(origin or "", "").format(module=module, scale=power(found.scale))


def _cure(bench: Bench, first: Pass, cured: Pass) -> str:
    scale = power(cured.scale)
    if cured.kept:
        modules = ", ".join(map(bench.label, cured.kept))
        beside = "" if cured.scale == first.scale else f" and a scale of {scale}"
        return f"A test pass with {modules} in fp32{beside} cured it."
    if cured.scale > first.scale:
        return f"A test pass with a scale of {scale} cured it."
    skips = math.ceil(math.log2(first.scale / cured.scale))
    return f"GradScaler finds a scale that fits after {skips} skipped steps at most; or start with {scale}."


def _code(bench: Bench, first: Pass, cured: Pass) -> Iterator[str]:
    if cured.kept:
        yield FP32.format(device=bench.device, modules=", ".join(map(bench.label, cured.kept)))
    if cured.scale != first.scale:
        yield SCALE.format(device=bench.device, exponent=math.log2(cured.scale))


def _modules(bench: Bench, first: Pass, bf16: Pass, cured: Pass | None) -> Iterator[ModuleCheck]:
    origin, began = first.began()
    limits, kept = cured or first, cured.kept if cured else ()
    for place in dict.fromkeys([*first.errors, *first.order]):
        finite = math.isfinite(first.loss) and math.isfinite(first.largest.get(place, 0.0))
        if place not in first.errors and place != began and place not in kept:
            continue
        name, kind = bench.name(place)
        yield ModuleCheck(
            name=name,
            kind=kind,
            finite=finite,
            overflows=origin if place == began and origin in ("forward", "backward") else None,
            error=_known(first.errors.get(place)),
            fixed_error=_known(cured.errors.get(place)) if cured and cured is not first else None,
            bf16_error=_known(bf16.errors.get(place)),
            largest_scale=limits.fits(place),
            keep_fp32=place in kept,
        )


def _known(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _goodness(module: ModuleCheck) -> tuple[bool, bool, float]:
    return module.overflows is None, module.finite, -(module.error or 0.0)
