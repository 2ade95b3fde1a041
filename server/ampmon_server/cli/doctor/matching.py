"""Finds the entries of the error index that match a pasted text.

Texts are compared by their runs of eight letters. Numbers, quotes, colours and line breaks are ignored, even within
words. A run that fewer entries contain weighs more.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TypeAlias

from ampmon_server.pages.messages import MessageEntry, entries


LEAST = 0.3
"""Minimum score of an answer. Unrelated errors score at most 0.12, messages with other names at least 0.4."""
SURE = 0.6
_LETTERS = 8
_NOT_TEXT = re.compile(r"\x1b\[[0-9;]*m|\b\w*(?:Error|Exception|Warning):|[^a-z_]", re.IGNORECASE)
Runs: TypeAlias = frozenset[str]


def find(text: str) -> list[MessageEntry]:
    """Return the entries that match ``text``, best first, or none without a good match.

    Of several sure matches the last in the text comes first, because an error stands below the warnings before it.
    """
    whole = _letters(text)
    runs = {_runs(whole), *(_runs(_letters(line)) for line in text.splitlines())}
    parts = [each for each in runs if not _having().keys().isdisjoint(each)]
    found = []
    for entry, messages in _index():
        if (score := _score(_runs(whole), parts, messages)) >= LEAST:
            found.append((_place(whole, messages) if score >= SURE else -1, score, entry))
    found.sort(key=lambda each: each[:2], reverse=True)
    return [entry for *_, entry in found]


def _score(whole: Runs, parts: Sequence[Runs], messages: Iterable[str]) -> float:
    """The largest share of a message that is in the text, or of a line of the text that is in a message."""
    return max(
        max(_share(message, whole), *(_share(part, message) for part in parts), 0.0)
        for message in map(_runs, messages)
    )


def _share(part: Runs, whole: Runs) -> float:
    return _weight(part & whole) / (_whole_weight(part) or 1.0)


def _weight(runs: Runs) -> float:
    having, count = _having(), len(_index())
    return sum(math.log(1 + count / (having[run] or 0.5)) for run in runs)


_whole_weight = cache(_weight)
"""Cached, because each text is compared with every message."""


def _place(whole: str, messages: Iterable[str]) -> int:
    """Where in the text the end of a message occurs last, or -1 if none does."""
    return max(whole.rfind(message[-_LETTERS:]) for message in messages)


def _letters(text: str) -> str:
    return _NOT_TEXT.sub("", text).lower()


@cache
def _runs(letters: str) -> Runs:
    return frozenset(
        letters[start : start + _LETTERS] for start in range(len(letters) - _LETTERS + 1)
    )


@cache
def _index() -> tuple[tuple[MessageEntry, tuple[str, ...]], ...]:
    return tuple((entry, tuple(map(_letters, entry.messages))) for entry in entries())


@cache
def _having() -> Counter[str]:
    return Counter(
        run for _, messages in _index() for run in frozenset[str]().union(*map(_runs, messages))
    )
