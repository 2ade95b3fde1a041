"""Handles errors of the monitor: counts them, warns the user once, and reports them. Training goes on."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

from ampmon.system import signals


ERRORS_IN_FULL = 100
"""Errors beyond this number are reported in hundreds."""


_registry: dict[Any, Any] = {}
"""The messages that Python has shown."""


class AmpmonWarning(UserWarning):
    """Category of ampmon's warnings: monitoring has a problem, and training continues. Each kind appears once."""


def warn(message: str) -> None:
    """Warn the user. Never raises, even if a filter turns warnings into errors or stderr is closed.

    Without a place, Python prints no line of a file below the message, which may end in code to copy.
    """
    try:
        warnings.warn_explicit(message, AmpmonWarning, "ampmon", 0, "ampmon", _registry)
    except Exception as error:
        signals.let_through(error)
        with contextlib.suppress(Exception):
            sys.stderr.write(message + "\n")


class ErrorReporter:
    """Counts ``errors``, and warns once for each place. Subclasses write the events."""

    def __init__(self) -> None:
        self.errors = 0
        self._warned: set[str] = set()

    def event(self, kind: str, **detail: Any) -> None:
        """Write an event; ``detail`` must be plain data."""
        raise NotImplementedError

    def failed(self, where: str, error: BaseException) -> None:
        """Count an error of the monitor, warn once for each place, and report it.

        Like everything that training calls, it raises only what a signal handler of the user raises.
        """
        self.errors += 1
        try:
            self._report(where, error)
        except Exception as another:
            signals.let_through(another)

    def _report(self, where: str, error: BaseException) -> None:
        self.warn(
            where,
            f"ampmon: {where} failed ({type(error).__name__}: {error}). Training is not affected; this is counted "
            "and shown on the run's page.",
        )
        full = self.errors <= ERRORS_IN_FULL
        if full or self.errors % ERRORS_IN_FULL == 0:
            self.event(
                "error",
                where=where,
                type=type(error).__name__,
                message=str(error)[:500],
                repeat=1 if full else ERRORS_IN_FULL,
            )

    def warn(self, key: str, message: str) -> None:
        """Warn once for each key. Never raises."""
        if key not in self._warned:
            self._warned.add(key)
            warn(message)
