"""The small files beside a spool's segments: where it is sent, how far it is delivered, and what the server answers.

The writer makes `destination`, readable only by its owner, and `closed` once no record follows. The sender keeps
`cursor`: losing it costs a resend, which the server ignores. For the writer it leaves `findings`, what is wrong with
the run, and `request`, when somebody last asked for a measurement.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from ampmon.config import SPOOL_BYTES, Route, RunOptions, route_to
from ampmon.identity.process import ProcessIdentity, this_process
from ampmon.spool.layout import DESTINATION, Position, bytes_behind
from ampmon.system import private


CURSOR = "cursor"
REJECTED = "rejected"
_CLOSED, _FINDINGS, _REQUEST = "closed", "findings", "request"


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The server of the records, and the process that writes them.

    ``token`` is the one given explicitly; None means the data directory's token file. Unless somebody ``named`` the
    address, the server that runs on the data directory takes precedence. ``route`` leads to a named address.
    ``bytes_max`` limits the records, and likewise those that the server rejects.
    """

    url: str
    mode: Literal["online", "offline"]
    process: ProcessIdentity
    token: str | None = None
    named: bool = True
    route: Route = Route()
    bytes_max: int = SPOOL_BYTES

    @classmethod
    def of(cls, options: RunOptions) -> Destination:
        """Return the destination of the calling process's records."""
        return cls(
            url=options.url,
            mode="offline" if options.mode == "offline" else "online",
            process=this_process(),
            token=options.token,
            named=options.named,
            route=route_to(options.url) if options.named else Route(),
            bytes_max=options.spool_bytes,
        )

    @classmethod
    def read(cls, path: Path) -> Destination | None:
        """Return the destination of the spool at ``path``, or None if none can be read, for example not yet."""
        try:
            return msgspec.json.decode((path / DESTINATION).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, path: Path) -> None:
        """Replace the destination of the spool at ``path``. Raises OSError."""
        private.replace(path / DESTINATION, msgspec.json.encode(self), durable=False)

    def __repr__(self) -> str:
        return f"Destination({self.url!r}, {self.mode})"  # no token, no proxy's password


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a spool is delivered: everything before is acknowledged, or set aside and counted.

    ``corrupt`` counts places where bytes were no frame, ``rejected`` counts records that the server refused, and
    ``discarded`` those of them for which the file `rejected` had no room.
    ``finished`` says that the attempt's own finish event was delivered.
    """

    segment: int
    offset: int
    corrupt: int = 0
    rejected: int = 0
    discarded: int = 0
    finished: bool = False

    @property
    def position(self) -> Position:
        return Position(self.segment, self.offset)

    @classmethod
    def read(cls, path: Path) -> Cursor:
        """Return the cursor of the spool at ``path``, or one at its beginning if none can be read."""
        try:
            return msgspec.json.decode((path / CURSOR).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls(segment=0, offset=0)

    @classmethod
    def bytes_left(cls, path: Path) -> int:
        """Bytes of the spool at ``path`` after its cursor; 0 if the spool is gone."""
        return bytes_behind(path, cls.read(path).position)

    def write(self, path: Path, *, durable: bool) -> None:
        """Replace the cursor atomically. With ``durable``, wait for the disk. Raises OSError."""
        private.replace(path / CURSOR, msgspec.json.encode(self), durable=durable)


class Answers:
    """The sender's side: writes new answers into the spool at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path, self._request = path / _FINDINGS, path / _REQUEST
        self._written: tuple[dict[str, Any], ...] | None = None
        self._asked: int | None = None

    def keep(self, findings: tuple[dict[str, Any], ...] | None) -> None:
        """Write the findings if they are known and new. Does not raise: the next answer brings them again."""
        if findings is None or findings == self._written:
            return
        # The disk may be full, and the spool may have been taken over or fully sent.
        with contextlib.suppress(OSError):
            private.replace(self._path, msgspec.msgpack.encode(findings), durable=False)
            self._written = findings

    def ask(self, request: int | None) -> None:
        """Write a request if it is new. A served one stays until the next replaces it. Does not raise."""
        if request not in {None, self._asked}:
            with contextlib.suppress(OSError):
                private.replace(self._request, str(request).encode(), durable=False)
                self._asked = request


def findings(path: Path) -> bytes | None:
    """The newest findings in the spool at ``path``, still encoded, or None. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        return (path / _FINDINGS).read_bytes()
    return None


def requested(path: Path) -> int | None:
    """The newest request in the spool at ``path``, or None. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((path / _REQUEST).read_bytes()[:32])
    return None


def close(path: Path) -> None:
    """Mark the spool at ``path`` as closed by its writer. Raises OSError."""
    private.replace(path / _CLOSED, b"", durable=False)


def is_closed(path: Path) -> bool:
    """Whether the writer marked the spool at ``path`` as closed. Raises OSError."""
    return (path / _CLOSED).exists()
