"""Finds the entries of the error index that match a pasted text, and prints the best. Needs only the standard library.

Texts are compared by their runs of eight letters. Numbers, quotes, colours and line breaks are ignored, even within
words. A run that fewer entries contain weighs more.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import TypeAlias

from ampmon_server.pages.messages import MessageEntry, entries


LEAST = 0.3
"""Minimum score of an answer. Unrelated errors score at most 0.12, messages with other names at least 0.4."""
SURE = 0.6
_LETTERS = 8
_NOT_TEXT = re.compile(r"\x1b\[[0-9;]*m|\b\w*(?:Error|Exception|Warning):|[^a-z_]", re.IGNORECASE)
Runs: TypeAlias = frozenset[str]
FURTHER_MAX = 2
_COLUMNS_MAX = 100
_LABEL = 9
_CODE = re.compile(r"```\w+\n(.*?)\n```", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


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


def show(found: Sequence[MessageEntry], *, as_json: bool) -> None:
    """Print the first entry in full, and the titles of at most two more."""
    entry, *further = found[: 1 + FURTHER_MAX]
    if as_json:
        near = [each.title for each in further]
        print(json.dumps({**asdict(entry), "anchor": entry.anchor, "near": near}, indent=1))
        return
    print("\n".join(_lines(entry)))
    if further:
        print("\nOr is it one of these?")
        print("\n".join(f"  {each.title}" for each in further))


def _lines(entry: MessageEntry) -> Iterator[str]:
    yield entry.title
    yield ""
    for message in entry.messages:
        yield from _wrapped("Message", message)
    yield ""
    for name, part in entry.parts.items():
        yield from _part(name, part)
        yield ""
    for rule in entry.findings:
        yield from _wrapped("Finding", f"{rule}: docs/findings/{rule}.md")
    yield from _wrapped("From", entry.seen.replace("`", ""))
    yield f"{'See':{_LABEL}}docs/errors.md, or /findings/errors#{entry.anchor} on your server"


def _part(label: str, markdown: str) -> Iterator[str]:
    """A part of an entry: wrapped prose beside its label, and code below with its lines unbroken."""
    for number, piece in enumerate(_CODE.split(markdown)):
        if number % 2:
            yield ""
            yield from textwrap.indent(piece, " " * (_LABEL + 2)).split("\n")
        else:
            for paragraph in filter(None, piece.strip().split("\n\n")):
                yield from _wrapped(label, _LINK.sub(r"\1", paragraph))
                label = ""


def _wrapped(label: str, words: str) -> list[str]:
    return textwrap.wrap(
        words,
        min(shutil.get_terminal_size().columns, _COLUMNS_MAX),
        initial_indent=f"{label:{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
