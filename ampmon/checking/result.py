"""The result of a preflight: the verdict in words, the fix as code, and the modules, as a table and as values."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ampmon.checking.passes import Pass, PassRunner, Places


COLUMNS = 80
ROWS = 10
NAME = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCheck:
    """The result for one module. Errors are relative to the norm of the fp32 gradient of its own parameters.

    Biases are left out. An error is None if there is no such gradient, or if it is not finite.
    """

    name: str
    kind: str
    """The module's class."""
    finite: bool
    """Whether its gradients were finite in fp16 at ``init_scale``."""
    overflows: Literal["forward", "backward"] | None
    """The pass in which this module was the first to overflow, if it was."""
    error: float | None
    """The error in fp16 at ``init_scale``."""
    fixed_error: float | None
    """The error in fp16 with the fix."""
    bf16_error: float | None
    largest_scale: float | None
    """The largest loss scale, a power of two, at which none of its fp16 gradients overflows; None if unknown."""
    keep_fp32: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What fp16 does to the gradients of a model on one batch. ``print()`` shows it as a table."""

    verdict: str
    problem: bool
    """Whether you have to change something. A scale that is too large is no problem: GradScaler lowers it."""
    fix: str = ""
    """The code of the fix; empty if there is nothing to change."""
    device: str
    init_scale: float
    scale: float | None = None
    """A loss scale that fits; None if none does."""
    error: float | None = None
    """Error of the whole gradient in fp16 at ``init_scale``, relative to its norm in fp32; None if not finite."""
    fixed_error: float | None = None
    """The same error with the fix."""
    bf16_error: float | None = None
    modules: tuple[ModuleCheck, ...] = ()
    """The worst first. Each has ``name``, ``kind`` (its class), ``error``, ``fixed_error``, ``bf16_error``, ``finite``,
    ``overflows`` (forward or backward, if it was the first), ``largest_scale`` and ``keep_fp32``."""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dictionary that JSON can encode."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield textwrap.fill(self.verdict, COLUMNS, break_long_words=False)
        if self.modules:
            yield ""
            yield from self._table()
        if self.fix:
            yield ""
            yield from textwrap.indent(self.fix, "    ").split("\n")

    def _table(self) -> Iterator[str]:
        fixed = bool(self.fix) and self.scale is not None
        columns = [f"FP16 {power(self.init_scale)}", *(["FIXED"] if fixed else []), "BF16"]
        yield _row("MODULE", *columns, "MAX SCALE")
        for each in self.modules[:ROWS]:
            broken = "overflows" if each.overflows else "" if each.finite else "inf/NaN"
            after = "in fp32" if each.keep_fp32 else percent(each.fixed_error)
            yield _row(
                each.name if len(label := f"{each.name} ({each.kind})") > NAME else label,
                broken or percent(each.error),
                *([after] if fixed else []),
                percent(each.bf16_error),
                power(each.largest_scale),
            )
        if len(self.modules) > ROWS:
            yield f"and {len(self.modules) - ROWS} more"
        whole = ["", percent(self.fixed_error)] if fixed else [percent(self.error)]
        yield _row("whole gradient", *whole, percent(self.bf16_error), "")


def _row(name: str, *cells: str) -> str:
    """Format a row. A long name loses its beginning, because its end says more."""
    name = name if len(name) <= NAME else f"…{name[1 - NAME :]}"
    return (f"{name:{NAME}}" + "".join(f"{cell:>11}" for cell in cells)).rstrip()


def percent(share: float | None) -> str:
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def power(scale: float | None) -> str:
    return "–" if scale is None else f"2^{math.log2(scale):g}"


GRADIENT_ERROR = 0.01
"""A gradient is reported if fp16 changes it by a larger share of its norm in fp32."""
LOST = 0.5
"""Rounding alone changes no gradient by this share."""
BF16 = 'with torch.autocast("{device}", dtype=torch.bfloat16):  # and no GradScaler\n    loss = ...'
FP32 = (
    'with torch.autocast("{device}", enabled=False):  # in forward(), around {modules}\n'
    "    out = layer(x.float())"
)
SCALE = 'scaler = ampmon.GradScaler("{device}", init_scale=2.0**{exponent:g})'
BEGAN = {
    "forward": " in the forward pass, first in {module}",
    "backward": " in the backward pass at a loss scale of {scale}, first in {module}",
    "loss": " in loss_fn, where the loss has to be computed from output.float()",
    "input": " in the model's input",
    None: "",
}


def harmed(found: Pass, bf16: Pass) -> Places:
    """Modules whose gradients fp16's range harms: much is subnormal, there or on its way back, or much is lost.

    Rounding may also change a gradient by some percent, if it turns a ReLU on or off. No scale helps then.
    """
    # -2 is below the -1 of modules that the forward pass did not show.
    last = max(map(found.index, found.small), default=-2)
    departed = found.departed is not None
    return tuple(
        place
        for place in _over(found)
        # `not <=` instead of `>`: an error of NaN is harm too.
        if not found.errors[place] <= bf16.errors[place]
        and (departed or found.index(place) <= last or not found.errors[place] <= LOST)
    )


def not_finite(bench: PassRunner, truth: Pass, scale: float) -> Preflight:
    """The result if fp32 has inf or NaN too."""
    what = "gradient" if math.isfinite(truth.loss) else "loss"
    return Preflight(
        verdict=f"The {what} is not finite in fp32 either: the cause is the data or the model, not fp16. It "
        f"began{_began(bench, truth)}.",
        problem=True,
        device=bench.device,
        init_scale=scale,
    )


def compared(bench: PassRunner, first: Pass, bf16: Pass, cured: Pass | None) -> Preflight:
    """The result from the first fp16 pass, the bf16 pass, and ``cured``, an fp16 pass without a problem, if found."""
    bf16_helps = cured is None and bf16.finite and not first.error <= bf16.error
    code = [BF16.format(device=bench.device)] if bf16_helps else _code(bench, first, cured or first)
    fix = "\n".join(code)
    return Preflight(
        verdict=f"{_problem(bench, first, cured)}{_cure(bench, first, cured, bf16_helps)}",
        problem=cured is None or bool(cured.kept) or cured.scale > first.scale,
        fix=fix,
        device=bench.device,
        init_scale=first.scale,
        scale=cured.scale if cured else None,
        error=known(first.error),
        fixed_error=known(cured.error) if cured and fix else None,
        bf16_error=known(bf16.error),
        modules=tuple(sorted(_modules(bench, first, bf16, cured), key=_goodness)),
    )


def _problem(bench: PassRunner, first: Pass, cured: Pass | None) -> str:
    if not first.finite:
        return f"fp16 overflows{_began(bench, first)}."
    at, limit, over = power(first.scale), percent(GRADIENT_ERROR), _over(first)
    words = f"changes no module's gradient by more than {limit}"
    if over:
        worst = _labels(bench, (max(over, key=lambda place: first.errors[place]),))
        count = f"{len(over)} of {len(first.errors)} modules"
        words = f"changes the gradient of {count} by more than {limit}, most in {worst}"
    if first is not cured:
        return f"At a loss scale of {at}, fp16 {words}."
    by = ", by rounding alone" if over else ""
    return f"Nothing to change: at a loss scale of {at}, fp16 overflows nowhere and {words}{by}."


def _cure(bench: PassRunner, first: Pass, cured: Pass | None, bf16_helps: bool) -> str:
    if cured is first:
        return ""
    if cured is None:
        bf16 = "bf16 does better." if bf16_helps else "bf16 does not cure it either."
        return f" No scale cures it, nor do a few modules in fp32. {bf16}"
    kept = f"{_labels(bench, cured.kept)} in fp32" if cured.kept else ""
    scale = f"a scale of {power(cured.scale)}" if cured.scale != first.scale else ""
    if kept or cured.scale > first.scale:
        rest = " The errors left are rounding." if _over(cured) else ""
        return f" A test pass with {' and '.join(filter(None, (kept, scale)))} cured it.{rest}"
    skips = math.ceil(math.log2(first.scale / cured.scale))
    return (
        f" GradScaler finds a scale that fits within {skips} skipped steps; or start with {scale}."
    )


def _code(bench: PassRunner, first: Pass, cured: Pass) -> Iterator[str]:
    if cured.kept:
        yield FP32.format(device=bench.device, modules=_labels(bench, cured.kept))
    if cured.scale != first.scale:
        yield SCALE.format(device=bench.device, exponent=math.log2(cured.scale))


def _modules(
    bench: PassRunner, first: Pass, bf16: Pass, cured: Pass | None
) -> Iterator[ModuleCheck]:
    origin, began = first.began()
    last = cured or first
    for place in sorted({*first.errors, *last.kept, *([] if began is None else [began])}):
        name, kind = bench.name(place)
        yield ModuleCheck(
            name=name,
            kind=kind,
            finite=math.isfinite(first.loss) and math.isfinite(first.largest.get(place, 0.0)),
            overflows=origin if place == began and origin in ("forward", "backward") else None,
            error=known(first.errors.get(place)),
            fixed_error=None if last is first else known(last.errors.get(place)),
            bf16_error=known(bf16.errors.get(place)),
            largest_scale=last.fits(place),
            keep_fp32=place in last.kept,
        )


def _over(found: Pass) -> Places:
    return tuple(place for place, error in found.errors.items() if not error <= GRADIENT_ERROR)


def _began(bench: PassRunner, found: Pass) -> str:
    origin, place = found.began()
    module = "" if place is None else _labels(bench, (place,))
    return BEGAN[origin].format(module=module, scale=power(found.scale))


def _labels(bench: PassRunner, places: Places) -> str:
    return ", ".join("module {} ({})".format(*bench.name(place)) for place in places)


def known(number: float | None) -> float | None:
    """The number, or None if it is not finite, because JSON cannot hold it."""
    return number if number is not None and math.isfinite(number) else None


def _goodness(module: ModuleCheck) -> tuple[bool, bool, float]:
    return module.overflows is None, module.finite, -(module.error or 0.0)
