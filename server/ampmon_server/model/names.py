"""Searches and shortens names, and finds modules and blocks in names of parameters and the loss among logged names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fnmatch import translate


def matching_indices(names: Sequence[str], search: str) -> list[int]:
    """Return the indices of the names that contain ``search``, ignoring case. An empty search matches all.

    If it contains ``*`` (anything) or ``?`` (one character), it has to match the whole name.
    """
    if not search:
        return list(range(len(names)))
    wild = search if "*" in search or "?" in search else f"*{search}*"
    # Brackets occur in names, so they are not fnmatch's classes of characters here.
    matches = re.compile(translate(wild.replace("[", "[[]")), re.IGNORECASE).match
    return [place for place, name in enumerate(names) if matches(name)]


def module_of(name: str) -> str:
    """Return a parameter's module: its name without the last part. A name of one part is its own module."""
    return name.rpartition(".")[0] or name


def block_of(name: str) -> str:
    """Return a parameter's block: its name up to the first number, else without the last part."""
    parts = name.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: max(numbered + 1, 1)])


def file_name(run: str) -> str:
    """Turn a run's name into a file name of at most 80 bytes, which file systems count, "run" if nothing is left."""
    kept = re.sub(r"[^\w.-]+", "-", run).strip("-.")
    return kept.encode()[:80].decode(errors="ignore") or "run"


def training_loss(names: Iterable[str]) -> str | None:
    """Return the logged name that is most likely the training loss. None if no name contains "loss"."""

    def distance(name: str) -> tuple[bool, bool, int]:
        lower = name.lower()
        return lower != "loss", not ("train" in lower or lower.endswith("loss")), len(lower)

    return min((name for name in names if "loss" in name.lower()), key=distance, default=None)


def shortened(name: str, letters: int) -> str:
    """Shorten a name to at most ``letters`` letters, all whole. Keep both ends: they say where it is and what it is."""
    if len(name) <= letters:
        return name
    front = letters // 2
    back = len(name) + front + 1 - letters
    while front and _joined(name, front):
        front -= 1
    while back < len(name) and _joined(name, back):
        back += 1
    return f"{name[:front]}…{name[back:]}"


_PARTS = re.compile(
    "[\u0e33\u0eb3\u1160-\u11ff\U0001f3fb-\U0001f3ff]"
    "|(?<=\u200d).|(?<=[\U0001f1e6-\U0001f1ff])[\U0001f1e6-\U0001f1ff]"
)
"""Thai, Lao and Korean vowels and skin tones, which follow another letter; what is joined; what follows half a flag."""


def _joined(name: str, at: int) -> bool:
    """Whether what is before and behind this place is one letter or emoji, or two flags."""
    marks = {"Mn", "Mc", "Me", "Cf"}
    return unicodedata.category(name[at]) in marks or _PARTS.match(name, at) is not None
