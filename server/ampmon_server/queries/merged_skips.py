"""Rows of the ledger that are one skip: found by several ranks of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ampmon_server.model.case import Skip
from ampmon_server.model.words import count
from ampmon_server.store.engine.paging import Paged, encode


NAMED = 8
"""Of more ranks than these the first are named."""


def shared(
    read: Callable[[str | None], Paged[Skip]], every: int, limit: int, cursor: str | None
) -> Paged[dict[str, Any]]:
    """At least ``limit`` skips that follow ``cursor``, if there are so many, each with all of its ranks.

    ``read`` gives a page of rows, ``every`` is how many ranks there are. A rank that is late has rows anywhere: a step
    is returned once all of it was read.
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
            return Paged(whole, encode(last + 1, 0, 0, 0))


def together(skips: Sequence[Skip], every: int) -> list[dict[str, Any]]:
    """Skips of the same step, scaler and optimizer as one, in the order of the first of each.

    What is said of one is what the lowest rank that names a culprit says: of those whose own loss was not finite, if
    there are any.
    """
    groups: dict[tuple[int, str, str], list[Skip]] = {}
    for skip in skips:
        groups.setdefault((skip.step, skip.scaler, skip.optimizer), []).append(skip)
    return [
        {
            **asdict(min(group, key=_precedence)),
            "ranks_words": ranks_words(sorted({each.rank for each in group}), every),
        }
        for group in groups.values()
    ]


def _precedence(skip: Skip) -> tuple[bool, bool, int]:
    return skip.loss != "not_finite", not skip.culprits, skip.rank


def ranks_words(ranks: Sequence[int], every: int) -> str:
    """Which of so many ranks of a run skipped; nothing of a run with one."""
    if every < 2:
        return ""
    if len(ranks) >= every:
        return f"all {count(every)} ranks"
    named = ", ".join(map(count, ranks[:NAMED])) + (", …" if len(ranks) > NAMED else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named} of {count(every)}"
