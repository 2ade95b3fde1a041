"""Names of parameters, files and losses: those that a reader looks for, and the part of a model that each is in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate


def sought(names: Sequence[str], search: str) -> list[int]:
    """The places of the names that hold ``search``, whatever its case; all where it is empty.

    With ``*`` (anything) or ``?`` (one letter) in it, a name has to match it from end to end.
    """
    if not search:
        return list(range(len(names)))
    wild = search if "*" in search or "?" in search else f"*{search}*"
    matches = re.compile(translate(wild.replace("[", "[[]")), re.IGNORECASE).match
    return [place for place, name in enumerate(names) if matches(name)]


def module_of(name: str) -> str:
    """The module that a parameter is of: all but the last word of its name. One of the model itself is its own."""
    return name.rpartition(".")[0] or name


def block_of(name: str) -> str:
    """The part of the model that a parameter is in: up to the first number in its name, else up to its last word."""
    parts = name.split(".")
    numbered = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: max(numbered + 1, 1)])


def file_name(run: str) -> str:
    """A run's name as a file's."""
    return re.sub(r"[^\w.-]+", "-", run).strip("-.")[:80] or "run"


def training_loss(names: Iterable[str]) -> str | None:
    """The name under which the training loss is most likely logged; None if no name mentions a loss."""

    def distance(name: str) -> tuple[bool, bool, int]:
        lower = name.lower()
        return lower != "loss", not ("train" in lower or lower.endswith("loss")), len(lower)

    return min((name for name in names if "loss" in name.lower()), key=distance, default=None)
