"""The exceptions of ampmon. Raised only at construction, in tools and on the server, never into a training step.

AmpmonError
├── ConfigurationError   an invalid argument or AMPMON_* variable; names it and what is valid
├── SpoolError           the data directory cannot be written or read; `ampmon.init` only warns
│   └── NewerRecords     a newer ampmon wrote the records
└── TransportError       a request to the server failed
    ├── Unreachable      no usable answer: retry
    ├── Refused          the server rejected the batch: a retry would fail again
    └── HeaderMissing    the server lacks a header of this batch: retry with its headers
"""

from __future__ import annotations


class AmpmonError(Exception):
    """The base class of ampmon's errors."""


class ConfigurationError(AmpmonError, ValueError):
    """An invalid argument or environment variable, or a file or package that needs a change. The message says which."""


class SpoolError(AmpmonError):
    """The data directory cannot be written or read."""


class NewerRecords(SpoolError):
    """A newer ampmon wrote the records."""


NO_TOKEN = (
    "there is no token, so nothing was sent: start a server on this data directory, which creates one, or set "
    "AMPMON_TOKEN"
)
"""Why an `Unreachable` was raised before anything was sent."""


class TransportError(AmpmonError):
    """A request to the server failed."""


class Unreachable(TransportError):
    """No usable answer: connection refused, timeout, 401, 429 or 5xx. A retry may succeed.

    ``retry_after_s`` is the delay that the server asked for, in seconds, or None.
    """

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Refused(TransportError):
    """The server rejected the request. ``status`` is the HTTP status. A retry of the same batch would fail again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class HeaderMissing(TransportError):
    """The server lacks a header that this batch needs (HTTP 409). Retry with the headers."""
