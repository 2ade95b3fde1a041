"""Where a spool is sent, and who writes it: the file `destination` in it, readable only by its owner."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from ampmon.config import RunOptions
from ampmon.identity import ProcessIdentity, this_process
from ampmon.system import private


_NAME = "destination"


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """The server of the records, and the process that writes them.

    ``token`` is the one given explicitly; None means the data directory's token file. Unless somebody ``named`` the
    address, the server that runs on the data directory takes precedence.
    """

    url: str
    mode: Literal["online", "offline"]
    process: ProcessIdentity
    token: str | None = None
    named: bool = True

    @classmethod
    def of(cls, options: RunOptions) -> Destination:
        """Return the destination of the calling process's records."""
        return cls(
            url=options.url,
            mode="offline" if options.mode == "offline" else "online",
            process=this_process(),
            token=options.token,
            named=options.named,
        )

    @classmethod
    def read(cls, path: Path) -> Destination | None:
        """Return the destination of the spool at ``path``, or None if none can be read, for example not yet."""
        try:
            return msgspec.json.decode((path / _NAME).read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return None

    def write(self, path: Path) -> None:
        """Replace the destination of the spool at ``path``. Raises OSError."""
        private.replace(path / _NAME, msgspec.json.encode(self), durable=False)

    def __repr__(self) -> str:
        return f"Destination({self.url!r}, {self.mode})"  # without the token
