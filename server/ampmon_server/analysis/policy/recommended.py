"""The one change that a run's findings recommend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ampmon.wire import Finding


@dataclass(frozen=True, slots=True)
class Recommended:
    """The recommended ``code``, empty if there is none. ``setting`` is what it sets for one scaler."""

    code: str = ""
    setting: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, findings: Iterable[Finding], scaler: str) -> Recommended:
        """Take the first fix of a diagnosis that is no alternative. `setting` is empty if it is of another scaler."""
        for each in findings:
            if each.fix and not each.second:
                return cls(each.fix, each.setting if each.scaler == scaler else {})
        return cls()

    def standing(self, *, same: bool) -> str:
        """Describe a choice relative to the recommendation: the ``same``, or an alternative and why."""
        if same:
            return "Recommended: the findings show the code."
        if not self.code:
            return "Alternative: no finding recommends a change."
        return "Alternative: the findings recommend another change, which fixes their cause."
