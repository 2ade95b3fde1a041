"""The parameters of a sampled update in words, for the page's table and its caption."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ampmon_server.model.parameter_statistics import STATISTICS, Unit
from ampmon_server.model.readouts import number
from ampmon_server.model.words import NONE, bits, count, measure, percent, plural, within


_NAMELESS = re.compile(r"parameter \d+ \[")
"""The trainer's name for a parameter if it has no model: "parameter 4 [64 × 3]"."""
_WORDS: dict[Unit, Callable[[float], str]] = {
    "share": percent,
    "magnitude": measure,
    "headroom": bits,
}


def caption(sampled: Mapping[str, Any], sort: str) -> str:
    """Say what the table shows: how many parameters, which come first, and what is special about some."""
    total, found, overflowed = sampled["total"], sampled["found"], sampled["overflowed"]
    worst = sort == "worst"
    parts = [
        f"At step {count(sampled['step'])}: {count(sampled['on_grid'])} of {plural(total, 'parameter')} representable "
        f"in fp16{', the most subnormal first' if worst else ''}."
    ]
    if total - overflowed > sampled["on_grid"]:
        last = "; they are listed last" if worst else ""
        parts.append(f"The others' gradients were computed in fp32{last}.")
    if overflowed:
        parts.append(f"In {plural(overflowed, 'parameter')}, every element is inf or NaN.")
    if sampled["sampled"]:
        parts.append("Large parameters are sampled: ± is the standard error.")
    if found < total:
        parts.append(f"The search matches {count(found)}.")
    if any(_NAMELESS.match(row["name"]) for row in sampled["parameters"]):
        parts.append(
            "A parameter without a name shows its index: pass model= to GradScaler() or watch()."
        )
    return " ".join(parts)


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what the table says of a parameter, by statistic, with ``lost``, the elements that are inf and NaN."""
    inf, nan = row["inf"], row["nan"]
    own = {
        "subnormal": within(row["subnormal_fraction"], row["subnormal_fraction_error"]),
        "zero": within(row["zero_fraction"], row["zero_fraction_error"]),
        "headroom": ("at most " if row["sampled"] else "")
        + _in(number(row, "headroom_bits"), "headroom"),
        "norm": _in(number(row, "norm"), "magnitude"),
        "on_grid": _grid(row),
        "lost": f"{count(inf)}, {count(nan)}" if inf + nan else "0",
    }
    others = {
        name: _in(_other(row, name), each.unit)
        for name, each in STATISTICS.items()
        if name not in own
    }
    return {**own, **others}


def _other(row: Mapping[str, Any], name: str) -> float | None:
    kind = row["statistics_kinds"].get(name)
    value: float | None = row["statistics"].get(name) if kind is None else float(kind)
    return value


def _in(value: float | None, unit: Unit) -> str:
    return NONE if value is None else _WORDS[unit](value)


def _grid(row: Mapping[str, Any]) -> str:
    # If all elements are NaN or inf, the grid says nothing: inf is always on it, and NaN never.
    if row["looked"] > 0 and row["inf"] + row["nan"] == row["looked"]:
        return NONE
    share = row["on_grid_fraction"]
    return "yes" if row["on_grid"] else f"no: {NONE if share is None else percent(share)}"
