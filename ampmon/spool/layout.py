"""Names of spool files: ``spool/<attempt id>/NNNNNN.seg``, beside files about them. Reads no contents.

A spool that was taken over is ``spool/<attempt id>~<process that took it>``. A takeover is one atomic rename, so only
one process gets the spool.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ampmon.identity.process import ProcessIdentity, file_name, this_process
from ampmon.system import private


SEGMENT_BYTES = 8 * 2**20
"""Once a segment holds this much, the next one begins."""
SUFFIX = ".seg"
DESTINATION = "destination"
"""The file that says where the records are sent."""
_TAKEN = "~"
_CLAIM_FIELDS = 5
_NOBODY_KNOWN = ProcessIdentity(pid=0, started=0, boot_id="?", host="?", namespace=0)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a spool: the number of a segment and a byte offset in it."""

    segment: int
    offset: int


def attempt_directory(directory: Path, attempt_id: UUID) -> Path:
    return directory / "spool" / attempt_id.hex


def attempt_id_of(path: Path) -> UUID | None:
    """The attempt of the spool at ``path``, taken over or not, or None if it is not a spool."""
    name = path.name.partition(_TAKEN)[0]
    try:
        return UUID(hex=name) if len(name) == 32 else None
    except ValueError:
        return None


def spools(directory: Path) -> list[Path]:
    """The spools in the data directory, oldest first, since attempt ids sort by time."""
    return spools_in(directory / "spool")


def spools_in(folder: Path) -> list[Path]:
    """The spools in a folder, oldest first; empty if there is no folder. Raises OSError."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [path for name in names if attempt_id_of(path := folder / name) is not None]


def spools_of(directory: Path, attempt_id: UUID) -> list[Path]:
    """The spools of one attempt: its own and, after a takeover, the one with its earlier records."""
    return [path for path in spools(directory) if attempt_id_of(path) == attempt_id]


def claimant_of(path: Path) -> ProcessIdentity | None:
    """The process that took over the spool at ``path``, or None. An unreadable name gives one of unknown fate."""
    _, taken, name = path.name.partition(_TAKEN)
    if not taken:
        return None
    fields = name.split("_", _CLAIM_FIELDS - 1)
    try:
        pid, started, namespace, boot_id, host = fields
        return ProcessIdentity(
            pid=int(pid), started=int(started), boot_id=boot_id, host=host, namespace=int(namespace)
        )
    except ValueError:
        return _NOBODY_KNOWN


def is_mine(path: Path) -> bool:
    """Whether this process took over the spool at ``path``."""
    return path.name.partition(_TAKEN)[2] == _claim_name(this_process())


def claim(path: Path) -> Path | None:
    """Take over the spool at ``path``. Return its new path, or None if another process was quicker.

    The writer goes on appending to the segment that it has open. Raises OSError.
    """
    attempt_id = attempt_id_of(path)
    assert attempt_id is not None, f"{path} is a spool"
    taken = path.with_name(f"{attempt_id.hex}{_TAKEN}{_claim_name(this_process())}")
    try:
        # A takeover counts as a change for processes that wait until the spool is silent.
        os.utime(path)
        private.rename(path, taken)
    except FileNotFoundError:
        return None
    return taken


def _claim_name(process: ProcessIdentity) -> str:
    # The host comes last, because only it may hold an underscore.
    return (
        f"{process.pid}_{process.started}_{process.namespace}_{process.boot_id}"
        f"_{file_name(process.host)}"
    )


def segment_name(number: int) -> str:
    return f"{number:06d}{SUFFIX}"


def segment_path(path: Path, number: int) -> Path:
    return path / segment_name(number)


def segments(path: Path) -> list[int]:
    """Numbers of the segments in a spool, ascending. Raises FileNotFoundError if the spool is gone."""
    stems = (name.removesuffix(SUFFIX) for name in os.listdir(path) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def end_of(path: Path) -> Position:
    """The current end of a spool. Raises FileNotFoundError if it is gone."""
    last = max(segments(path), default=None)
    return (
        Position(0, 0) if last is None else Position(last, segment_path(path, last).stat().st_size)
    )


def bytes_behind(path: Path, position: Position) -> int:
    """Bytes in a spool after ``position``; 0 if the spool is gone."""
    total = 0
    try:
        for number in segments(path):
            if number >= position.segment:
                total += segment_path(path, number).stat().st_size
                total -= position.offset if number == position.segment else 0
    except FileNotFoundError:
        pass  # fully delivered meanwhile
    return max(0, total)


def last_written(path: Path) -> float:
    """When a record was last appended to a spool, in seconds since the epoch; 0 if the spool is gone."""
    try:
        return max((segment_path(path, n).stat().st_mtime for n in segments(path)), default=0.0)
    except FileNotFoundError:
        return 0.0


def last_changed(path: Path) -> float:
    """When anything in a spool was last written, sent or taken over, as `last_written`."""
    try:
        return max(path.stat().st_mtime, last_written(path))
    except FileNotFoundError:
        return 0.0


def time_at(directory: Path) -> float:
    """The file system's clock (maybe a file server's), read by touching ``directory``. Raises OSError."""
    os.utime(directory)
    return directory.stat().st_mtime


def discard_segments(path: Path, before: int) -> None:
    """Delete the segments before number ``before``. Raises OSError."""
    for number in segments(path):
        if number < before:
            segment_path(path, number).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Delete a spool, its segments first. Does not raise: another call deletes what remains."""
    with contextlib.suppress(OSError):
        for number in segments(path):
            segment_path(path, number).unlink(missing_ok=True)
        # The destination last: a sender that is killed meanwhile leaves a spool that the next one knows and deletes.
        for each in path.iterdir():
            if each.name != DESTINATION:
                with contextlib.suppress(OSError):
                    each.unlink()
        shutil.rmtree(path, ignore_errors=True)


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a directory, which syncing a file need not do. Blocks. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
