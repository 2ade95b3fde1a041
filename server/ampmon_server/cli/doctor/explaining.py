"""Prints an entry of the error index, and the titles of similar ones. Needs only the standard library."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from ampmon_server.pages.messages import MessageEntry


FURTHER_MAX = 2
_COLUMNS_MAX = 100
_LABEL = 9
_CODE = re.compile(r"```\w+\n(.*?)\n```", re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


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
