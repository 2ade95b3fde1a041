"""The result of a preflight, as a table for people and as values for programs. Uses no tensors."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal


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
