"""Certificates of a private authority, as files for `ampmon serve`."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import trustme


@dataclass
class Authority:
    """Issues certificates into ``folder``. ``file`` is the authority's own certificate, for clients to trust."""

    folder: Path
    file: Path = field(init=False)

    def __post_init__(self) -> None:
        self._own = trustme.CA()
        self.file = self.folder / "authority.pem"
        self._own.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, days: float = 365.0, called: str = "server") -> tuple[Path, Path]:
        """Return a new certificate for these names and addresses, valid for ``days`` more days, and its key."""
        ends = datetime.now(timezone.utc) + timedelta(days=days)
        made = self._own.issue_cert(
            *(names or ("localhost", "127.0.0.1")),
            not_before=ends - timedelta(days=400),
            not_after=ends,
        )
        cert, key = self.folder / f"{called}.pem", self.folder / f"{called}.key"
        cert.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))
        made.private_key_pem.write_to_path(key)
        return cert, key


def secured(listener: socket.socket, pair: tuple[Path, Path]) -> ssl.SSLSocket:
    """A listener whose connections use TLS, with a certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    return context.wrap_socket(listener, server_side=True)
