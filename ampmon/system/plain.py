"""Makes other people's text safe for a terminal: no control characters, and bounded length."""

from __future__ import annotations

import re
import unicodedata

import msgspec

from ampmon.wire import Finding


LINE_MAX, TEXT_MAX = 1000, 4096
"""Maximum characters of a title, and of an explanation or a fix."""
RULE = re.compile(r"[a-z0-9_]{1,64}")
"""Valid names of rules, which are file names in the manual and keys of warnings."""
_NAME_MAX, _NAMES_MAX = 256, 64


def plain(words: str, most: int | None = None, *, lines: bool = False) -> str:
    """Cut to ``most`` characters, and replace what a terminal would obey by blanks. ``lines`` keeps line breaks."""
    kept = words if most is None else cut(words, most)
    kept = kept.replace("\t", "    ") if lines else kept
    return "".join(c if _is_shown(c) or (lines and c == "\n") else " " for c in kept)


def cut(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _is_shown(character: str) -> bool:
    # To Python, no space but the ASCII one is printable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def plain_finding(finding: Finding) -> Finding:
    """Return the finding in plain text. Some of its text came with a run, or from a server that may be anybody's."""
    evidence = [
        (plain(name, _NAME_MAX), plain(value, _NAME_MAX) if isinstance(value, str) else value)
        for name, value in finding.evidence.items()
    ]
    return msgspec.structs.replace(
        finding,
        rule=plain(finding.rule, _NAMES_MAX),
        title=plain(finding.title, LINE_MAX),
        explanation=plain(finding.explanation, TEXT_MAX, lines=True),
        fix=plain(finding.fix, TEXT_MAX, lines=True),
        second=plain(finding.second, LINE_MAX),
        scaler=plain(finding.scaler, _NAME_MAX),
        parameters=tuple(plain(name, _NAME_MAX) for name in finding.parameters[:_NAMES_MAX]),
        evidence=dict(evidence[:_NAMES_MAX]),
        figure=plain(finding.figure, _NAMES_MAX),
    )
