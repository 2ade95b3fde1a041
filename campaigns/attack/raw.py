"""Raw HTTP over a socket, from any local address, with or without TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


HEAD_END = b"\r\n\r\n"
QUIET_S = 3.0
"""Timeout of an answer. A server that waits for the rest of a request sends none."""


@dataclass(frozen=True)
class Answer:
    """One response. Header names are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each == name]

    def first(self, name: str) -> str:
        return next(iter(self.all(name)), "")


@dataclass(frozen=True)
class Wire:
    """Sends requests to a port of ``host``, from the address ``source``, over TLS if ``ca`` is given."""

    port: int
    host: str = "127.0.0.1"
    source: str | None = None
    ca: Path | None = None

    def send(self, data: bytes) -> list[Answer]:
        """Send bytes and return every answer. A connection that closes without an answer returns none."""
        received = b""
        with suppress(OSError), self.connected() as connection:
            connection.settimeout(QUIET_S)
            connection.sendall(data)
            while part := connection.recv(65536):
                received += part
        return list(answers(received))

    def connected(self) -> socket.socket:
        """Open a connection. Raises OSError."""
        source = None if self.source is None else (self.source, 0)
        plain = socket.create_connection((self.host, self.port), QUIET_S, source)
        if self.ca is None:
            return plain
        return ssl.create_default_context(cafile=str(self.ca)).wrap_socket(
            plain, server_hostname="localhost"
        )

    def ask(
        self,
        method: str,
        target: str | bytes,
        *headers: tuple[str | bytes, str | bytes],
        body: bytes = b"",
        host: str | None = "127.0.0.1",
    ) -> Answer:
        """Return the answer to one request, or one with status 0 if there was none."""
        named = [] if host is None else [("Host", f"{host}:{self.port}")]
        found = self.send(request(method, target, [*named, *headers], body))
        return found[0] if found else Answer(0)


def request(
    method: str,
    target: str | bytes,
    headers: Iterable[tuple[str | bytes, str | bytes]],
    body: bytes = b"",
) -> bytes:
    """The bytes of a request with `Connection: close`."""
    lines = [b" ".join([method.encode(), _bytes(target), b"HTTP/1.1"])]
    lines += [b"%b: %b" % (_bytes(name), _bytes(value)) for name, value in headers]
    lines += [b"Content-Length: %d" % len(body)] if body else []
    return b"\r\n".join([*lines, b"Connection: close", b"", body])


def answers(received: bytes) -> Iterable[Answer]:
    """Parse the answers in received bytes. Answers to HEAD are not supported."""
    while received.startswith(b"HTTP/1.1 "):
        head, _, rest = received.partition(HEAD_END)
        status, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = tuple((name.lower(), value.strip()) for name, _, value in pairs)
        length = int(dict(headers).get("content-length", len(rest)))
        yield Answer(int(status.split()[1]), headers, rest[:length])
        received = rest[length:]


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
