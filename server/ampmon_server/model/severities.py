"""Compares the severities of findings."""

from __future__ import annotations

from collections.abc import Mapping

from ampmon.wire import Severity


RANKS: Mapping[Severity, int] = {"critical": 0, "warning": 1, "notice": 2}
"""The worst severity has the lowest number."""


def worse(one: Severity, other: Severity) -> Severity:
    return min(one, other, key=lambda each: RANKS[each])


def milder(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=lambda each: RANKS[each])
