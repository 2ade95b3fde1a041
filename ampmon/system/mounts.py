"""Finds the kind of file system that a path is on, in the system's list of mounts. Opens no file there."""

from __future__ import annotations

import re
from pathlib import Path


MOUNTS = Path("/proc/self/mountinfo")
"""Linux's list of mounts. Other systems have none."""

_SHARED = re.compile(
    r"acfs|afs|beegfs|ceph|cifs|coda|davfs|glusterfs|gpfs|lustre|ncpfs|nfs4?|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
    r"|fuse\.(beegfs|blobfuse2?|ceph|davfs2?|gcsfuse|glusterfs|goofys|juicefs|mfs|mount-s3|rclone|s3fs|seaweedfs|sshfs)"
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The kind of ``path``'s file system, such as ``nfs4``, if machines share it. ``path`` need not exist.

    None for any other file system, or if the system does not say.
    """
    try:
        listed = (mounts or MOUNTS).read_text(errors="surrogateescape").splitlines()
        place = path.absolute().resolve(strict=False)
    except (OSError, RuntimeError):
        return None
    kind, depth = None, -1
    for line in listed:
        found = _mount(line)
        # A later mount at the same place hides the one before.
        if found is not None and place.is_relative_to(found[0]) and len(found[0].parts) >= depth:
            kind, depth = found[1], len(found[0].parts)
    return kind if kind is not None and _SHARED.fullmatch(kind) else None


def _mount(line: str) -> tuple[Path, str] | None:
    """A line's mount point and kind of file system. Optional fields end at a lone hyphen."""
    before, separator, after = line.partition(" - ")
    fields, rest = before.split(" "), after.split(" ")
    if not separator or len(fields) < 5:
        return None
    return Path(_ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])), rest[0]
