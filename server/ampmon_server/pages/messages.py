"""The index of error messages: `docs/errors.md`, as entries that a terminal can show. Needs the standard library only.

The page is the source: a section is a heading of two #, an entry one of three, and each part begins with its name in
bold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from ampmon_server.pages import assets


PARTS = ("Cause", "Check", "Fix")


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One heading of the page: messages that have one cause. Its parts are Markdown."""

    title: str
    section: str
    messages: tuple[str, ...]
    parts: dict[str, str]
    findings: tuple[str, ...]
    """The rules that find it in a run, the likeliest first."""
    seen: str
    """Packages and versions, or commits, whose sources print it."""

    @property
    def anchor(self) -> str:
        return anchor(self.title)


@cache
def entries() -> tuple[MessageEntry, ...]:
    """All of the page, in its order. Raises OSError where it is not there."""
    sections = assets.errors().read_text("utf-8").split("\n## ")[1:]
    return tuple(
        _entry(section.partition("\n")[0], text)
        for section in sections
        for text in section.split("\n### ")[1:]
    )


def anchor(heading: str) -> str:
    """What a link to a heading names, as GitHub has it."""
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
        seen=" ".join(parts.get("Seen in", "").split()),
    )
