"""Waits at the end of a run until the sender has delivered it, judging by the files that the sender writes."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

from ampmon.sender.launch import ensure_running
from ampmon.sender.statusfile import status
from ampmon.spool import Cursor, Destination, attempt_directory, spools_of


_POLL_S = 0.01
_LOOK_AFTER_S = 1.0


def wait_until_sent(directory: Path, attempt_id: UUID, deadline_s: float) -> bool:
    """Wait until all records of the attempt are acknowledged. Return whether they were within ``deadline_s`` seconds.

    Blocks for no longer, and returns at once if the sender reports a problem with the server. What is left stays on
    disk, and the sender goes on.
    """
    destination = Destination.read(attempt_directory(directory, attempt_id))
    now_s = time.monotonic()
    deadline_s += now_s
    look_after_s = now_s + _LOOK_AFTER_S
    while not _is_sent(directory, attempt_id):
        now_s = time.monotonic()
        said = status(directory)
        if now_s >= deadline_s or (
            said and destination and said.problem(destination.url, attempt_id)
        ):
            return False
        if now_s >= look_after_s:
            ensure_running(directory)
            look_after_s = now_s + _LOOK_AFTER_S
        time.sleep(_POLL_S)
    return True


def _is_sent(directory: Path, attempt_id: UUID) -> bool:
    paths = spools_of(directory, attempt_id)
    sent = all(Cursor.bytes_left(path) == 0 for path in paths)
    # A spool that was taken over meanwhile is not gone: it has another name.
    return sent and set(spools_of(directory, attempt_id)) <= set(paths)
