"""What goes wrong in the monitor: counted, shown once to the user, and reported. Training goes on."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

from ampmon.system import signals


ERRORS_IN_FULL = 100
"""Errors of the monitor beyond these are reported in hundreds."""


class AmpmonWarning(UserWarning):
    """Category of ampmon's warnings: the monitoring has a problem, and training continues. Each kind appears once."""


def warn(message: str) -> None:
    """Warn the user. Never raises: not where a filter makes errors of warnings, nor where nobody listens."""
    try:
        warnings.warn(message, AmpmonWarning, stacklevel=2)
    except Exception as error:
        signals.let_through(error)
        with contextlib.suppress(Exception):
            sys.stderr.write(message + "\n")


class Troubles:
    """Counts ``errors``, and warns once for each place. Whoever inherits it writes events."""

    def __init__(self) -> None:
        self.errors = 0
        self._warned: set[str] = set()

    def event(self, kind: str, **detail: Any) -> None:
        """Write an event; ``detail`` must be plain data."""
        raise NotImplementedError

    def failed(self, where: str, error: BaseException) -> None:
        """Count an error of the monitor's own, warn once for each place, and report it.

        Raises, as all that a training calls, nothing but what a signal handler of the user's does.
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
