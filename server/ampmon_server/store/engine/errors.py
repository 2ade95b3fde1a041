"""What the store raises; the routes turn each into an HTTP answer.

StoreError
├── BadBatch        a record that cannot be; names the field
├── HeaderMissing   records of an attempt or a stream that was never introduced
├── BadQuery        a question that cannot be answered; names the parameter
├── NotFound        no such run, stream or sample
├── NameTaken       a token that is still good has that name
├── Busy            the database is locked or full: the same call may succeed later
│   └── Conflict    another transaction was in the way: the same call may succeed at once
└── Unusable        the database cannot be opened; says what to do
"""

from __future__ import annotations


class StoreError(Exception):
    """Any refusal of the store's own."""


class BadBatch(StoreError, ValueError):
    """A batch with a record that cannot be. ``field`` is the path to it, as in ``records[3].ordinal``."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class UnknownHeader(StoreError):
    """Records that build on a header which this server never got. ``header`` is ``attempt`` or the stream's name."""

    def __init__(self, header: str) -> None:
        what = "attempt" if header == "attempt" else f"stream {header!r}"
        super().__init__(f"This server has no header of the {what}: send the batch with it.")
        self.header = header


class BadQuery(StoreError, ValueError):
    """A question that cannot be answered. ``field`` is the parameter at fault."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field


class NotFound(StoreError, LookupError):
    """There is no such run, stream or sample."""


class NameTaken(StoreError):
    """A token that is still good has that name."""


class Busy(StoreError):
    """The database cannot write now."""


class Conflict(Busy):
    """Two transactions were in each other's way, and this one was given up."""


class Unusable(StoreError):
    """The database cannot be opened; the message says what to do."""


class Damaged(ValueError):
    """Bytes that are not what was packed; a caller of the store sees it as `Busy`."""
