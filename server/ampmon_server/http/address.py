"""The file in which a running server keeps its address, where commands and trainings find it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from ampmon.system import private


_CONNECT_S = 0.5


@contextmanager
def address_written(path: Path, url: str) -> Iterator[None]:
    """Keep ``url`` in ``path`` during the block.

    Two servers with a database each may share a data directory. So leave the address of another one that was written
    meanwhile. Put back the one from before if that server still answers.
    """
    own, before = f"{url}\n".encode(), _read(path)
    private.replace(path, own, durable=False)
    try:
        yield
    finally:
        if _read(path) != own:
            pass
        elif before != own and answers(before.decode(errors="replace").strip()):
            private.replace(path, before, durable=False)
        else:
            path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    try:
        return private.read(path)
    except OSError:
        return b""


def is_free(port: int) -> bool:
    """Whether a server could listen on a port of this machine. One that was released just now counts as free."""
    with socket.socket() as tried, suppress(OSError):
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(("127.0.0.1", port))
        return True
    return False


def answers(url: str | None) -> bool:
    """Whether a server accepts connections at ``url``. A killed server leaves its address behind."""
    if not url:
        return False
    with suppress(OSError, ValueError):
        place = urlsplit(url)
        port = place.port or (443 if place.scheme == "https" else 80)
        socket.create_connection((place.hostname or "", port), _CONNECT_S).close()
        return True
    return False
