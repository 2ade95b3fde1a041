"""Takes over a spool by adding its new sender to its name. One atomic rename, so only one process gets it."""

from __future__ import annotations

import os
from pathlib import Path

from ampmon.identity import ProcessIdentity, file_name, this_process
from ampmon.spool import layout


_FIELDS = 5
_NOBODY_KNOWN = ProcessIdentity(pid=0, started=0, boot_id="?", host="?", namespace=0)


def claimant_of(path: Path) -> ProcessIdentity | None:
    """The process that took over the spool at ``path``, or None. An unreadable name gives one of unknown fate."""
    _, taken, name = path.name.partition(layout.TAKEN)
    if not taken:
        return None
    fields = name.split("_", _FIELDS - 1)
    try:
        pid, started, namespace, boot_id, host = fields
        return ProcessIdentity(
            pid=int(pid), started=int(started), boot_id=boot_id, host=host, namespace=int(namespace)
        )
    except ValueError:
        return _NOBODY_KNOWN


def is_mine(path: Path) -> bool:
    """Whether this process took over the spool at ``path``."""
    return path.name.partition(layout.TAKEN)[2] == _name(this_process())


def claim(path: Path) -> Path | None:
    """Take over the spool at ``path``. Return its new path, or None if another process was quicker.

    The writer goes on appending to the segment that it has open. Raises OSError.
    """
    attempt_id = layout.attempt_id_of(path)
    assert attempt_id is not None, f"{path} is a spool"
    taken = path.with_name(f"{attempt_id.hex}{layout.TAKEN}{_name(this_process())}")
    try:
        # A takeover counts as a change for processes that wait until the spool is silent.
        os.utime(path)
        path.rename(taken)
    except FileNotFoundError:
        # A file server may report this for a repeated request, although the rename was done.
        return taken if taken.exists() else None
    return taken


def _name(process: ProcessIdentity) -> str:
    return (
        f"{process.pid}_{process.started}_{process.namespace}_{process.boot_id}"
        f"_{file_name(process.host)}"
    )
