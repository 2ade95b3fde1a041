"""What a run's findings recommend, as those who show a setting need it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ampmon.wire import Finding


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommended ``code``, empty without any; ``setting`` is what it sets of the scaler that is looked at."""

    code: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, findings: Iterable[Finding], scaler: str) -> Recommended:
        """Of findings as `diagnosis` leaves them: one fix is not second to another."""
        for each in findings:
            if each.fix and not each.second:
                return cls(each.fix, each.setting if each.scaler == scaler else {})
        return cls()

    def standing(self, *, same: bool) -> str:
        """What a choice is beside it: the ``same``, or an alternative, and why that is second."""
        if same:
            return "Recommended: the code is with the findings."
        if not self.code:
            return "Alternative: no finding recommends a change."
        return "Alternative: the findings recommend another change, which cures what they found."
