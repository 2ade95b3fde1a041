"""Where things lie: ``spool/<attempt id>/NNNNNN.seg`` beside the files about them. Owns names only.

A spool that was taken over is ``spool/<attempt id>~<who took it>``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID


SEGMENT_BYTES = 8 * 2**20
"""A segment is followed by another once it holds this much."""
SUFFIX = ".seg"
TAKEN = "~"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a spool: a segment's number and an offset in it (bytes)."""

    segment: int
    offset: int


def attempt_directory(directory: Path, attempt_id: UUID) -> Path:
    """Where the spool of an attempt lies in the data directory."""
    return directory / "spool" / attempt_id.hex


def attempt_id_of(path: Path) -> UUID | None:
    """The attempt whose spool ``path`` is, taken over or not, or None where it is something else."""
    name = path.name.partition(TAKEN)[0]
    try:
        return UUID(hex=name) if len(name) == 32 else None
    except ValueError:
        return None


def spools(directory: Path) -> list[Path]:
    """The spools in the data directory, oldest first: attempt ids sort by time."""
    return spools_in(directory / "spool")


def spools_in(folder: Path) -> list[Path]:
    """The spools that lie in a folder, oldest first; none where there is no folder. Raises OSError."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [path for name in names if attempt_id_of(path := folder / name) is not None]


def spools_of(directory: Path, attempt_id: UUID) -> list[Path]:
    """The spools of one attempt: its own and, where that was taken over, the one with what it held until then."""
    return [path for path in spools(directory) if attempt_id_of(path) == attempt_id]


def segment_name(number: int) -> str:
    return f"{number:06d}{SUFFIX}"


def segment_path(path: Path, number: int) -> Path:
    return path / segment_name(number)


def segments(path: Path) -> list[int]:
    """Numbers of the segments in a spool, ascending. Raises FileNotFoundError where the spool is gone."""
    stems = (name.removesuffix(SUFFIX) for name in os.listdir(path) if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def end_of(path: Path) -> Position:
    """Where a spool ends now. Raises FileNotFoundError where it is gone."""
    last = max(segments(path), default=None)
    return (
        Position(0, 0) if last is None else Position(last, segment_path(path, last).stat().st_size)
    )


def bytes_behind(path: Path, position: Position) -> int:
    """How much lies behind a place in a spool, in bytes; 0 where the spool is gone."""
    total = 0
    try:
        for number in segments(path):
            if number >= position.segment:
                total += segment_path(path, number).stat().st_size
                total -= position.offset if number == position.segment else 0
    except FileNotFoundError:
        pass  # delivered to its end meanwhile
    return max(0, total)


def last_written(path: Path) -> float:
    """When something was last appended to a spool, in seconds since the epoch; 0 where the spool is gone."""
    try:
        return max((segment_path(path, n).stat().st_mtime for n in segments(path)), default=0.0)
    except FileNotFoundError:
        return 0.0


def last_changed(path: Path) -> float:
    """When somebody last wrote, sent or took over anything of a spool, as `last_written`."""
    try:
        return max(path.stat().st_mtime, last_written(path))
    except FileNotFoundError:
        return 0.0


def time_at(directory: Path) -> float:
    """Now, by the clock that stamps files in ``directory``, which may be that of a file server. Raises OSError.

    It is read from the directory's own time of change, which is set for that.
    """
    os.utime(directory)
    return directory.stat().st_mtime


def discard_segments(path: Path, before: int) -> None:
    """Free the disk of the segments before number ``before``. Raises OSError."""
    for number in segments(path):
        if number < before:
            segment_path(path, number).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Free the disk of a spool. Does not raise: what remains holds no records, and goes with the next call."""
    with contextlib.suppress(OSError):
        for number in segments(path):
            segment_path(path, number).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Have the disk keep the names in a directory, which a file's own sync need not. Blocks. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
