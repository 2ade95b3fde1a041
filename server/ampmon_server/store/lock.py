"""One server per SQLite file: a lock that the system lets go of when its process ends, however it ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

from ampmon import private
from ampmon_server.store.errors import Unusable


def acquire(path: Path) -> IO[bytes]:
    """Lock the file at ``path``, made if need be; closing it lets go. Raises Unusable where another process has it."""
    try:
        handle = os.fdopen(private.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")
    except OSError as error:
        raise Unusable(
            f"{path.parent} cannot be used ({error.strerror}): name another --data-dir"
        ) from None
    try:
        _lock(handle)
    except OSError:
        handle.close()
        raise Unusable(
            f"Another ampmon serve uses {path.parent}: stop it, or name another --data-dir"
        ) from None
    return handle


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: IO[bytes]) -> None:
        msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: IO[bytes]) -> None:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.set_inheritable(handle.fileno(), False)
