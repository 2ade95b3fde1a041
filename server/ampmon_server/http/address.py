"""The file in which a running server keeps its address, where commands and trainings find it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ampmon.config import answers
from ampmon.system import private


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
