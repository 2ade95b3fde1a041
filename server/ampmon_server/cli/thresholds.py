"""Parses thresholds of the command line, such as ``--threshold skip_rate.warning=0.02``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from ampmon_server.model.thresholds import Levels, Thresholds


NEVER = "never"


class BadThreshold(ValueError):
    """The given threshold is invalid. The message says what is allowed."""


def add_threshold(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="override a finding's threshold, such as skip_rate.warning=0.02, or "
        f"skip_rate.notice={NEVER} (repeatable)",
    )


def parse(given: Iterable[str]) -> Thresholds:
    """The default thresholds, overridden by ``given``. Raises BadThreshold."""
    thresholds = Thresholds()
    for each in given:
        thresholds = _changed(thresholds, each)
    for field in fields(thresholds):
        levels = getattr(thresholds, field.name)
        if isinstance(levels, Levels) and not _rise(levels):
            raise BadThreshold(
                f"--threshold {field.name}: {_shown(levels)} do not rise from notice to critical"
            )
    return thresholds


def _changed(thresholds: Thresholds, given: str) -> Thresholds:
    place, _, text = given.partition("=")
    name, _, level = place.strip().partition(".")
    before = getattr(thresholds, name, None)
    if before is None or name not in {field.name for field in fields(thresholds)}:
        known = ", ".join(field.name for field in fields(thresholds))
        raise BadThreshold(
            f"--threshold {given}: no threshold is called {name!r}; there are {known}"
        )
    if not isinstance(before, Levels):
        if level:
            raise BadThreshold(f"--threshold {given}: {name} has no levels; write {name}={before}")
        whole = isinstance(before, int)
        changed: Any = {name: _number(given, text, whole=whole)}
        return replace(thresholds, **changed)
    if level not in Levels._fields:
        raise BadThreshold(
            f"--threshold {given}: write {name}.notice, {name}.warning or {name}.critical"
        )
    value = None if text.strip() == NEVER else _number(given, text)
    changed = {name: before._replace(**{level: value})}
    return replace(thresholds, **changed)


def _number(given: str, text: str, *, whole: bool = False) -> float:
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        kind = "a whole number" if whole else "a number"
        raise BadThreshold(f"--threshold {given}: {text!r} is not {kind} of at least 0")
    return value


def _rise(levels: Levels) -> bool:
    known = [level for level in levels if level is not None]
    return known == sorted(known)


def _shown(levels: Levels) -> str:
    return ", ".join(NEVER if level is None else f"{level:g}" for level in levels)
