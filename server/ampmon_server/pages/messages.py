"""The index of error messages: the entries of `docs/errors.md` for a terminal. Needs only the standard library.

A heading with two # is a section, and one with three is an entry. Each part of an entry begins with its name in bold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ampmon_server.pages import assets


PARTS = ("Cause", "Check", "Fix")


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One heading of the page: messages with one cause. Its parts are Markdown."""

    title: str
    section: str
    messages: tuple[str, ...]
    parts: dict[str, str]
    findings: tuple[str, ...]
    """The rules that find it in a run, the likeliest first."""
    seen: str
    """Packages with versions or commits whose sources print it."""

    @property
    def anchor(self) -> str:
        return anchor(self.title)


@cache
def entries() -> tuple[MessageEntry, ...]:
    """Return all entries, in the order of the page. Raises OSError if the page is missing."""
    sections = assets.errors().read_text("utf-8").split("\n## ")[1:]
    return tuple(
        _entry(section.partition("\n")[0], text)
        for section in sections
        for text in section.split("\n### ")[1:]
    )


def anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def _entry(section: str, text: str) -> MessageEntry:
    head, *rest = re.split(r"^\*\*(.+?)\.\*\* ", text, flags=re.MULTILINE)
    parts = {name: part.strip() for name, part in zip(rest[::2], rest[1::2], strict=True)}
    return MessageEntry(
        title=head.partition("\n")[0].replace("`", ""),
        section=section,
        messages=tuple(re.findall(r"^```text\n(.*?)\n```$", head, re.MULTILINE | re.DOTALL)),
        parts={name: parts[name] for name in PARTS if name in parts},
        findings=tuple(re.findall(r"\(findings/(\w+)\.md\)", parts.get("Finding", ""))),
        seen=" ".join(parts.get("From", "").split()),
    )
