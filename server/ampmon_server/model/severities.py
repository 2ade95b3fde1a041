"""How findings compare: what is worse than what."""

from __future__ import annotations

from collections.abc import Mapping

from ampmon.wire import Severity


RANKS: Mapping[Severity, int] = {"critical": 0, "warning": 1, "notice": 2}
"""The worst first."""


def worse(one: Severity, other: Severity) -> Severity:
    """The worse of two."""
    return min(one, other, key=lambda each: RANKS[each])


def milder(one: Severity, other: Severity) -> Severity:
    """The milder of two."""
    return max(one, other, key=lambda each: RANKS[each])
