"""Rows of the ledger of skips that are one skip: found by several ranks of a run, as the page has them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampmon_server.words import count


NAMED = 8
"""Of more ranks than these the first are named."""


def together(skips: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Skips of the same step, scaler and optimizer as one with its ``ranks``, in the order of the first of each.

    What is said of one is what the lowest rank that names a culprit says.
    """
    groups: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    for skip in skips:
        groups.setdefault((skip["step"], skip["scaler"], skip["optimizer"]), []).append(skip)
    return [
        {
            **min(group, key=lambda each: (not each["culprits"], each["rank"])),
            "ranks": sorted({each["rank"] for each in group}),
        }
        for group in groups.values()
    ]


def ranks_words(ranks: Sequence[int], every: int) -> str:
    """Which of so many ranks of a run skipped; nothing of a run with one."""
    if every < 2:
        return ""
    if len(ranks) >= every:
        return f"all {count(every)} ranks"
    named = ", ".join(map(count, ranks[:NAMED])) + (", …" if len(ranks) > NAMED else "")
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named} of {count(every)}"
