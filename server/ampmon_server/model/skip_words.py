"""A skipped step in words, for the page's table."""

from __future__ import annotations

from typing import Any

from ampmon_server.model.case import Skip, SkipCulprit
from ampmon_server.model.words import count, plural, scale_words


NAMED = 4
"""At most this many culprits are named."""

_CAUSES = {"inf": "✕ inf", "nan": "◆ NaN", "inf+nan": "✕ inf, ◆ NaN"}
_ORIGINS = {"input": "the model's input", "loss": "the loss"}
_LOSSES = {
    None: "",
    "finite": "loss finite",
    "overflowed": "loss finite, loss × scale overflowed",
    "not_finite": "loss not finite",
}
_ORDERS = {"learned": "in backward order (measured)", "assumed": "in backward order (estimated)"}


def words_of(skip: Skip) -> dict[str, Any]:
    """Return what the table says of a skip. Modules are in backticks, and culprits have their counts beside them."""
    total = max(skip.culprit_parameters, len(skip.culprits))
    rest = total - min(NAMED, len(skip.culprits))
    others = [f"and {plural(rest, 'more parameter')}"] if rest else []
    order = [_ORDERS[skip.culprit_order]] if total > 1 else []
    before, after = (
        scale_words(skip.scale, skip.scale_kind),
        scale_words(skip.scale_after, skip.scale_after_kind),
    )
    return {
        "scale": f"{before.split('= ')[-1]} → {after.split('= ')[-1]}",
        "cause": _CAUSES.get(skip.cause, "not known"),
        "origin": _origin(skip),
        "loss": _LOSSES[skip.loss],
        "culprits": [[each.parameter, _counts(each)] for each in skip.culprits[:NAMED]],
        "others": [*others, *order] if total else ["not known"],
    }


def _origin(skip: Skip) -> str:
    if skip.origin is None:
        return ""
    first = "first in" if skip.origin == "forward" else "first at"
    module = "" if skip.origin_module is None else f", {first} `{skip.origin_module}`"
    return f" in {_ORIGINS.get(skip.origin, skip.origin)}{module}"


def _counts(culprit: SkipCulprit) -> str:
    inf, nan = culprit.inf, culprit.nan
    if inf is None and nan is None:
        return "not counted"
    named = [(inf, "inf"), (nan, "NaN")]
    return ", ".join(f"{count(number)} {name}" for number, name in named if number)
