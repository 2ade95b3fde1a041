"""Defines the errors of the store. The routes turn each into an HTTP response.

StoreError
├── BadBatch        an invalid record; names the field
├── UnknownHeader   records of an attempt or stream whose header the server does not have
├── BadQuery        an invalid query parameter; names it
├── NotFound        no such run, stream or sample
├── NameTaken       a valid token already has that name
├── Busy            the database is locked or full: a retry may succeed later
│   └── Conflict    another transaction interfered: a retry may succeed at once
├── Unreadable      stored data is damaged: other data may be readable
└── Unusable        the database cannot be opened; says what to do
"""

from __future__ import annotations

from ampmon.errors import AmpmonError


class StoreError(AmpmonError):
    """Base of all errors that the store raises on purpose."""


class _Invalid(StoreError, ValueError):
    """Input whose ``field`` has an invalid value."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class BadBatch(_Invalid):
    """A batch with an invalid record. ``field`` is the path to the invalid value, as in ``records[3].ordinal``."""


class UnknownHeader(StoreError):
    """Records that need a header which this server never received. ``header`` is ``attempt`` or the stream's name."""

    def __init__(self, header: str) -> None:
        what = "attempt" if header == "attempt" else f"stream {header!r}"
        super().__init__(f"This server has no header of the {what}: send the batch with it.")
        self.header = header


class BadQuery(_Invalid):
    """A query that cannot be answered. ``field`` is the invalid parameter."""


class NotFound(StoreError, LookupError):
    """There is no such run, stream or sample."""


class NameTaken(StoreError):
    """A valid token already has that name."""


class Busy(StoreError):
    """The database cannot be used now. The same call may succeed later."""


class Conflict(Busy):
    """Two transactions conflicted, and this one was rolled back. The same call may succeed at once."""


class Unreadable(StoreError):
    """Stored data is damaged. The same call about other data may succeed."""


class Unusable(StoreError):
    """The database cannot be opened; the message says what to do."""


class Damaged(ValueError):
    """Stored bytes that differ from what was packed. Callers of the store get it as `Unreadable`."""
