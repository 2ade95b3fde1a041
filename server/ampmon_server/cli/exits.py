"""How commands end: the exit code for failures, the reason in words, and the size of a written file."""

from __future__ import annotations

from pathlib import Path


CANNOT = 2
"""Exit code if a command cannot do its work. A line on stderr says why. argparse uses the same code."""


def reason(error: Exception) -> str:
    """Return why a command failed. For errors with a file: "train.log: No such file or directory"."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def size_of(file: Path) -> str:
    """Return the size of a file, such as "14.0 kB" or "4.1 MB"."""
    size = file.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
