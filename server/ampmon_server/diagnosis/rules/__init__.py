"""The rules, one a file. A rule explains more than those after it: of equal severity its finding comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from ampmon.wire import Finding
from ampmon_server.case import Case
from ampmon_server.diagnosis.rules import skip_rate
from ampmon_server.thresholds import Thresholds


Rule: TypeAlias = Callable[[Case, Thresholds], Iterable[Finding]]

RULES: Sequence[Rule] = (skip_rate.examine,)
