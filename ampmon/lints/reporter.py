"""Reports each lint once, as an event of its stream and, unless it is a notice, as a warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ampmon.lints.words import LINTS
from ampmon.training.series import Deferred, Stream


NAMED_MAX = 64
ENOUGH = 3
"""What happens in this many updates in a row is no accident."""

Warn: TypeAlias = Callable[[str, str], None]
"""Takes a key and a message. Warns once for each key."""


class LintReporter:
    """Reports the lints of one stream. May be called on any thread."""

    def __init__(self, stream: Stream, warn: Warn) -> None:
        self._stream = stream
        self._warn = warn
        self._reported: set[str] = set()

    def knows(self, rule: str) -> bool:
        """Whether the lint was already reported."""
        return rule in self._reported

    def submit(self, look: Deferred) -> None:
        """Submit a check that waits for values from a device."""
        self._stream.submit(look)

    def say(self, rule: str, parameters: Sequence[str] = (), **values: object) -> None:
        """Report a lint once. ``values`` fill the placeholders of its texts."""
        if rule in self._reported:
            return
        self._reported.add(rule)
        lint = LINTS[rule]
        texts = lint.title, lint.explanation, lint.fix
        title, explanation, fix = (text.format(**values) for text in texts)
        self._stream.event(
            "lint",
            ordinal=self._stream.ordinal,
            rule=rule,
            severity=lint.severity,
            title=title,
            explanation=explanation,
            fix=fix,
            parameters=list(parameters[:NAMED_MAX]),
            stop=lint.stop,
        )
        if lint.severity != "notice":
            instead = f" Write:\n{fix}" if fix else ""
            self._warn(f"finding {rule}", f"ampmon: {title}. {explanation}{instead}")
