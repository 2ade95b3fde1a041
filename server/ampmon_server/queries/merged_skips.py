"""Merges rows of the ledger that are one skip, found by several ranks of a run, and puts it in words for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ampmon_server.model.case import Skip, SkipCulprit
from ampmon_server.model.words import count, plural, scale_words
from ampmon_server.store.engine.rows import Paged, encode_cursor


NAMED = 8
"""At most this many ranks are named."""

CULPRITS = 4
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


def shared(
    read: Callable[[str | None], Paged[Skip]], every: int, limit: int, cursor: str | None
) -> Paged[dict[str, Any]]:
    """Return at least ``limit`` skips after ``cursor``, if there are that many, each with all of its ranks.

    ``read`` returns a page of rows, and ``every`` is the number of ranks. The rows of a late rank may be anywhere in a
    step, so a step is returned only after all of it was read.
    """
    rows: list[Skip] = []
    following = cursor
    while True:
        page = read(following)
        rows += page.rows
        following = page.next
        if following is None:
            return Paged(together(rows, every), None)
        last = rows[-1].step
        whole = together([row for row in rows if row.step != last], every)
        if len(whole) >= limit:
            return Paged(whole, encode_cursor(last + 1, 0, 0, 0))


def together(skips: Sequence[Skip], every: int) -> list[dict[str, Any]]:
    """Merge skips of the same step, scaler and optimizer, in the order of the first of each.

    The details are those of one row: prefer a loss that was not finite, then named culprits, then the lowest rank.
    """
    groups: dict[tuple[int, str, str], list[Skip]] = {}
    for skip in skips:
        groups.setdefault((skip.step, skip.scaler, skip.optimizer), []).append(skip)
    return [_merged(group, every) for group in groups.values()]


def _merged(group: Sequence[Skip], every: int) -> dict[str, Any]:
    skip = min(group, key=lambda each: (each.loss != "not_finite", not each.culprits, each.rank))
    ranks = ranks_words(sorted({each.rank for each in group}), every)
    return {**asdict(skip), "ranks_words": ranks, "words": words_of(skip)}


def ranks_words(ranks: Sequence[int], every: int) -> str:
    """Name the ranks that skipped, of the ``every`` ranks of a run. Empty for a run with one rank."""
    if every < 2:
        return ""
    if len(ranks) >= every:
        return f"all {count(every)} ranks"
    named = ", ".join(map(count, ranks[:NAMED])) + (", …" if len(ranks) > NAMED else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named} of {count(every)}"


def words_of(skip: Skip) -> dict[str, Any]:
    """Return what the table says of a skip. Modules are in backticks, and culprits have their counts beside them."""
    total = max(skip.culprit_parameters, len(skip.culprits))
    rest = total - min(CULPRITS, len(skip.culprits))
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
        "culprits": [[each.parameter, _counts(each)] for each in skip.culprits[:CULPRITS]],
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
