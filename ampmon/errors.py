"""What ampmon raises, and only at construction, in tools and on the server: never into a training step.

AmpmonError
├── ConfigurationError   an argument or AMPMON_* variable that cannot be used; says which, and what can
├── SpoolError           the data directory cannot be written or read; `ampmon.init` warns of it instead
└── TransportError       a request to the server failed
    ├── Unreachable      no answer came: worth trying again
    ├── Refused          an answer that trying again will not change
    └── HeaderMissing    the server lacks a header of this batch: send it again with its headers
"""

from __future__ import annotations


class AmpmonError(Exception):
    """Any error of ampmon's own."""


class ConfigurationError(AmpmonError, ValueError):
    """An argument or an environment variable that cannot be used."""


class SpoolError(AmpmonError):
    """The data directory cannot be written or read."""


class TransportError(AmpmonError):
    """A request to the server failed."""


class Unreachable(TransportError):
    """No usable answer: connection refused, timeout, 401, 429 or 5xx. Worth trying again.

    ``retry_after_s`` is what the server asked for, in seconds, or None.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(TransportError):
    """The server understood and refused. ``status`` is its HTTP status; the same batch would be refused again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HeaderMissing(TransportError):
    """The server lacks a header that this batch builds on (HTTP 409): send the headers with it."""
